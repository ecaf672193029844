# SPDX-License-Identifier: Apache-2.0
from ._canvas import picture
from ._energy import draw_portable
from ._evolution import draw_evolution
from ._networks import draw_fusion, draw_operator_profile
from ._predictors import draw_fit, draw_graph_predictor, draw_kernels, draw_predictions, draw_sizes
from ._search import ACCURACY, ParetoPoint, SearchPicture, draw_pareto, draw_search, pareto_front
from ._tables import draw_comparison, draw_table, draw_validation, plot

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
    "draw_pareto",
    "draw_portable",
    "draw_predictions",
    "draw_search",
    "draw_sizes",
    "draw_table",
    "draw_validation",
    "pareto_front",
    "picture",
    "plot",
]
