from ._batches import BatchedNetworks
from ._document import save_networks
from ._measuring import ANCHORS, DATASET_PROTOCOL, PlatformLatencies, measure_networks
from ._network_files import NetworkFile, family_files, given_files
from ._summaries import NetworkSummary, Speed, part_times, summarise_network

__all__ = [
    "ANCHORS",
    "DATASET_PROTOCOL",
    "BatchedNetworks",
    "NetworkFile",
    "NetworkSummary",
    "PlatformLatencies",
    "Speed",
    "family_files",
    "given_files",
    "measure_networks",
    "part_times",
    "save_networks",
    "summarise_network",
]
