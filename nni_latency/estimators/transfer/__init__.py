"""Transfer: a new device from a handful of networks, with the help of devices that are known."""

from nni_latency.estimators.transfer._cell import CellEncoding
from nni_latency.estimators.transfer._document import transfer_schema
from nni_latency.estimators.transfer._encoding import Encoding
from nni_latency.estimators.transfer._files import (
    UNITS,
    CsvColumns,
    architectures_of,
    latencies_of,
    read_columns,
)
from nni_latency.estimators.transfer._finding import encoding_of
from nni_latency.estimators.transfer._layers import EncodedLayer, LayeredSpace, LayerEncoding
from nni_latency.estimators.transfer._learning import FewSourcesWarning
from nni_latency.estimators.transfer._recovery import Recovery, recover

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
