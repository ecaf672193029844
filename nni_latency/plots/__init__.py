"""Pictures: what was measured and found, as PNG."""

from nni_latency.plots._search import SearchPicture, draw_search

__all__ = ["SearchPicture", "draw_search"]
