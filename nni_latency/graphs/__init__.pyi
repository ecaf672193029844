from ._family import Family, families, find_families
from ._variation import Variation

__all__ = [
    "Family",
    "Variation",
    "families",
    "find_families",
]
