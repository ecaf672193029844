"""Model spaces, and how to walk one into its candidates."""

from typing import TYPE_CHECKING

from nni_latency.imports import lazy_exports

if TYPE_CHECKING:
    from nni_latency.spaces._architecture import complete_selection, parse_architecture
    from nni_latency.spaces._fbnet import FBNetSpace
    from nni_latency.spaces._fbnet_geometry import CANDIDATES, PRESETS, PUBLISHED_NETWORKS, FBNetGeometry
    from nni_latency.spaces._walk import choices_of, plan_of

__all__ = [
    "CANDIDATES",
    "PRESETS",
    "PUBLISHED_NETWORKS",
    "FBNetGeometry",
    "FBNetSpace",
    "choices_of",
    "complete_selection",
    "parse_architecture",
    "plan_of",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "CANDIDATES": "nni_latency.spaces._fbnet_geometry",
        "FBNetGeometry": "nni_latency.spaces._fbnet_geometry",
        "FBNetSpace": "nni_latency.spaces._fbnet",
        "PRESETS": "nni_latency.spaces._fbnet_geometry",
        "PUBLISHED_NETWORKS": "nni_latency.spaces._fbnet_geometry",
        "choices_of": "nni_latency.spaces._walk",
        "complete_selection": "nni_latency.spaces._architecture",
        "parse_architecture": "nni_latency.spaces._architecture",
        "plan_of": "nni_latency.spaces._walk",
    },
)
