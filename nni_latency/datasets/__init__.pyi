# SPDX-License-Identifier: Apache-2.0
from ._archive import Archive, GraphDocument, Part, networks_schema
from ._batches import BatchedNetworks, part_times, summarise_networks
from ._graph_kernels import kernels_of_calls, kernels_of_nodes
from ._learning import SHIPPED_NAME, measured_networks
from ._measuring import ANCHORS, DATASET_PROTOCOL, PlatformLatencies, measure_networks
from ._merging import merge_networks
from ._network_files import NetworkFile, family_files, given_files, measured_files
from ._network_kernels import HELD_OUT, learn_network_kernels
from ._network_set import NetworkEntry, NetworkSet, load_networks
from ._writing import export_nnlqp, import_nnlqp, save_networks

__all__ = [
    "ANCHORS",
    "DATASET_PROTOCOL",
    "HELD_OUT",
    "SHIPPED_NAME",
    "Archive",
    "BatchedNetworks",
    "GraphDocument",
    "NetworkEntry",
    "NetworkFile",
    "NetworkSet",
    "Part",
    "PlatformLatencies",
    "export_nnlqp",
    "family_files",
    "given_files",
    "import_nnlqp",
    "kernels_of_calls",
    "kernels_of_nodes",
    "learn_network_kernels",
    "load_networks",
    "measure_networks",
    "measured_files",
    "measured_networks",
    "merge_networks",
    "networks_schema",
    "part_times",
    "save_networks",
    "summarise_networks",
]
