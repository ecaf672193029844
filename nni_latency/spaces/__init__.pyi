# SPDX-License-Identifier: Apache-2.0
from ._covering import N_NETWORKS, operator_plan
from ._fbnet import FBNetSpace
from ._fbnet_geometry import (
    CANDIDATES,
    PUBLISHED_NETWORKS,
    FBNetGeometry,
    parse_architecture,
    parse_candidate,
    scale_channels,
)
from ._fbnet_plan import ClassificationHead, ConvBlock, FBNetBlock, Skip
from ._finding import class_of, fbnet_space, hub_space, is_space, make_space, parameters_of, plan_of, reference_of
from ._hub import HUB_SPACES
from ._networks import NetworkBuilder, example_inputs_of, knows_inputs, network_of
from ._samples import SampledSpace, check_sample, choices_of, draw_samples, labels_of, name_choices, read_sample
from ._space_key import space_key
from ._space_operators import SpaceOperators, operators_of_space
from ._varying import TooManyChoicesError

__all__ = [
    "CANDIDATES",
    "HUB_SPACES",
    "N_NETWORKS",
    "PUBLISHED_NETWORKS",
    "ClassificationHead",
    "ConvBlock",
    "FBNetBlock",
    "FBNetGeometry",
    "FBNetSpace",
    "NetworkBuilder",
    "SampledSpace",
    "Skip",
    "SpaceOperators",
    "TooManyChoicesError",
    "check_sample",
    "choices_of",
    "class_of",
    "draw_samples",
    "example_inputs_of",
    "fbnet_space",
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
    "parse_candidate",
    "plan_of",
    "read_sample",
    "reference_of",
    "scale_channels",
    "space_key",
]
