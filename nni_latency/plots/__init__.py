"""Pictures: what was measured and found, as PNG."""

from nni_latency.plots._acts import draw_fit, draw_predictions
from nni_latency.plots._comparison import draw_comparison
from nni_latency.plots._on_axes import plot
from nni_latency.plots._operator_table import draw_operator_table
from nni_latency.plots._search import SearchPicture, draw_search
from nni_latency.plots._table import draw_table
from nni_latency.plots._validation import draw_validation

__all__ = [
    "SearchPicture",
    "draw_comparison",
    "draw_fit",
    "draw_operator_table",
    "draw_predictions",
    "draw_search",
    "draw_table",
    "draw_validation",
    "plot",
]
