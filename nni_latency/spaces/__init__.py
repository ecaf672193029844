"""Model spaces, and how to walk one into its candidates."""

from typing import TYPE_CHECKING

from nni_latency.imports import lazy_exports

if TYPE_CHECKING:
    from nni_latency.spaces._architecture import parse_architecture
    from nni_latency.spaces._fbnet import FBNetSpace
    from nni_latency.spaces._fbnet_geometry import CANDIDATES, PUBLISHED_NETWORKS
    from nni_latency.spaces._walk import plan_of

__all__ = [
    "CANDIDATES",
    "FBNetSpace",
    "PUBLISHED_NETWORKS",
    "parse_architecture",
    "plan_of",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "CANDIDATES": "nni_latency.spaces._fbnet_geometry",
        "FBNetSpace": "nni_latency.spaces._fbnet",
        "PUBLISHED_NETWORKS": "nni_latency.spaces._fbnet_geometry",
        "parse_architecture": "nni_latency.spaces._architecture",
        "plan_of": "nni_latency.spaces._walk",
    },
)
