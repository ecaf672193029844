from ._cell import CellEncoding
from ._document import transfer_schema
from ._encoding import Encoding
from ._files import UNITS, CsvColumns, architectures_of, latencies_of, read_columns
from ._finding import encoding_of
from ._layers import EncodedLayer, LayeredSpace, LayerEncoding
from ._learning import FewSourcesWarning
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
