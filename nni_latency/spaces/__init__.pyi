from ._architecture import complete_selection, parse_architecture
from ._covering import N_NETWORKS, operator_plan
from ._fbnet import FBNetSpace
from ._fbnet_geometry import CANDIDATES, PRESETS, PUBLISHED_NETWORKS, FBNetGeometry
from ._finding import class_of, hub_space, is_space, make_space, parameters_of, reference_of
from ._hub import HUB_SPACES
from ._networks import NetworkBuilder, example_inputs_of, knows_inputs, network_of
from ._sampled import SampledSpace
from ._samples import check_sample, draw_samples, labels_of, name_choices, read_sample
from ._space_operators import SpaceOperators, operators_of_space
from ._varying import TooManyChoicesError
from ._walk import choices_of, plan_of

__all__ = [
    "CANDIDATES",
    "HUB_SPACES",
    "N_NETWORKS",
    "PRESETS",
    "PUBLISHED_NETWORKS",
    "FBNetGeometry",
    "FBNetSpace",
    "NetworkBuilder",
    "SampledSpace",
    "SpaceOperators",
    "TooManyChoicesError",
    "check_sample",
    "choices_of",
    "class_of",
    "complete_selection",
    "draw_samples",
    "example_inputs_of",
    "hub_space",
    "is_space",
    "knows_inputs",
    "labels_of",
    "make_space",
    "name_choices",
    "network_of",
    "operator_plan",
    "operators_of_space",
    "parameters_of",
    "parse_architecture",
    "plan_of",
    "read_sample",
    "reference_of",
]
