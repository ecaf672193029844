"""Transfer: a new device from a handful of networks, with the help of devices that are known."""

from nni_latency.estimators.transfer._cell import CellEncoding
from nni_latency.estimators.transfer._document import transfer_schema
from nni_latency.estimators.transfer._encoding import Encoding
from nni_latency.estimators.transfer._finding import encoding_of
from nni_latency.estimators.transfer._layers import EncodedLayer, LayeredSpace, LayerEncoding
from nni_latency.estimators.transfer._recovery import Recovery, recover

__all__ = [
    "CellEncoding",
    "EncodedLayer",
    "Encoding",
    "LayerEncoding",
    "LayeredSpace",
    "Recovery",
    "encoding_of",
    "recover",
    "transfer_schema",
]
