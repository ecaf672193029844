from ._acts import draw_fit, draw_predictions
from ._comparison import draw_comparison
from ._evolution import draw_evolution
from ._fusion import draw_fusion
from ._graph_predictor import draw_graph_predictor
from ._kernels import draw_kernels, draw_sizes
from ._on_axes import plot
from ._operator_profile import draw_operator_profile
from ._operator_table import draw_operator_table
from ._pareto import ACCURACY, ParetoPoint, draw_pareto, pareto_front
from ._portable import draw_portable
from ._search import SearchPicture, draw_search
from ._table import draw_table
from ._validation import draw_validation

__all__ = [
    "ACCURACY",
    "ParetoPoint",
    "SearchPicture",
    "draw_comparison",
    "draw_evolution",
    "draw_fit",
    "draw_fusion",
    "draw_graph_predictor",
    "draw_kernels",
    "draw_operator_profile",
    "draw_operator_table",
    "draw_pareto",
    "draw_portable",
    "draw_predictions",
    "draw_search",
    "draw_sizes",
    "draw_table",
    "draw_validation",
    "pareto_front",
    "plot",
]
