# SPDX-License-Identifier: Apache-2.0
"""Arguments that make the spaces of NNI's hub small, so that tests of all of them take a moment."""

from __future__ import annotations

_CELLS = {"width": [16, 24], "num_cells": [3, 4]}

SMALL = {
    "proxylessnas": {"num_labels": 10, "width_mult": 0.25},
    "mobilenetv3": {"num_labels": 10, "width_multipliers": [0.5, 1.0], "expand_ratios": [1.0, 3.0]},
    "shufflenet": {"num_labels": 10},
    "autoformer": {"num_labels": 10, "search_depth": [2, 3], "img_size": 64},
    "nasbench101": {"stem_out_channels": 16, "num_stacks": 2, "num_modules_per_stack": 2},
    "nasbench201": {"num_modules_per_stack": 2},
    "darts": _CELLS,
    "nasnet": _CELLS,
    "enas": _CELLS,
    "amoebanet": _CELLS,
    "pnas": _CELLS,
}
