# SPDX-License-Identifier: Apache-2.0
from ._adaptation import FewSourcesWarning
from ._cells import CellEncoding
from ._document import transfer_schema
from ._encoding import Encoding
from ._inputs import UNITS, CsvColumns, architectures_of, latencies_of, read_columns
from ._layers import EncodedLayer, LayeredSpace, LayerEncoding, encoding_of
from ._recovery import Recovery, recover

__all__ = [
    "UNITS",
    "CellEncoding",
    "CsvColumns",
    "EncodedLayer",
    "Encoding",
    "FewSourcesWarning",
    "LayerEncoding",
    "LayeredSpace",
    "Recovery",
    "architectures_of",
    "encoding_of",
    "latencies_of",
    "read_columns",
    "recover",
    "transfer_schema",
]
