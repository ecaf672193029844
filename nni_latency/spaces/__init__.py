"""Model spaces, and how to walk one into its candidates."""

from typing import TYPE_CHECKING

from nni_latency.imports import lazy_exports

if TYPE_CHECKING:
    from nni_latency.spaces._architecture import complete_selection, parse_architecture
    from nni_latency.spaces._covering import N_NETWORKS, operator_plan
    from nni_latency.spaces._fbnet import FBNetSpace
    from nni_latency.spaces._fbnet_geometry import CANDIDATES, PRESETS, PUBLISHED_NETWORKS, FBNetGeometry
    from nni_latency.spaces._finding import hub_space, make_space, parameters_of, reference_of
    from nni_latency.spaces._hub import HUB_SPACES
    from nni_latency.spaces._networks import NetworkBuilder, example_inputs_of, network_of
    from nni_latency.spaces._sampled import SampledSpace
    from nni_latency.spaces._samples import check_sample, draw_samples, labels_of, name_choices, read_sample
    from nni_latency.spaces._space_operators import SpaceOperators, operators_of_space
    from nni_latency.spaces._varying import TooManyChoicesError
    from nni_latency.spaces._walk import choices_of, plan_of

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
    "complete_selection",
    "draw_samples",
    "example_inputs_of",
    "hub_space",
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

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "CANDIDATES": "nni_latency.spaces._fbnet_geometry",
        "FBNetGeometry": "nni_latency.spaces._fbnet_geometry",
        "FBNetSpace": "nni_latency.spaces._fbnet",
        "HUB_SPACES": "nni_latency.spaces._hub",
        "N_NETWORKS": "nni_latency.spaces._covering",
        "NetworkBuilder": "nni_latency.spaces._networks",
        "PRESETS": "nni_latency.spaces._fbnet_geometry",
        "PUBLISHED_NETWORKS": "nni_latency.spaces._fbnet_geometry",
        "SampledSpace": "nni_latency.spaces._sampled",
        "SpaceOperators": "nni_latency.spaces._space_operators",
        "TooManyChoicesError": "nni_latency.spaces._varying",
        "check_sample": "nni_latency.spaces._samples",
        "choices_of": "nni_latency.spaces._walk",
        "complete_selection": "nni_latency.spaces._architecture",
        "draw_samples": "nni_latency.spaces._samples",
        "example_inputs_of": "nni_latency.spaces._networks",
        "hub_space": "nni_latency.spaces._finding",
        "labels_of": "nni_latency.spaces._samples",
        "name_choices": "nni_latency.spaces._samples",
        "make_space": "nni_latency.spaces._finding",
        "network_of": "nni_latency.spaces._networks",
        "operator_plan": "nni_latency.spaces._covering",
        "operators_of_space": "nni_latency.spaces._space_operators",
        "parameters_of": "nni_latency.spaces._finding",
        "parse_architecture": "nni_latency.spaces._architecture",
        "plan_of": "nni_latency.spaces._walk",
        "read_sample": "nni_latency.spaces._samples",
        "reference_of": "nni_latency.spaces._finding",
    },
)
