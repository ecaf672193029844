# SPDX-License-Identifier: Apache-2.0
from ._model_analysis import BlockAnalysis, ModelAnalysis

__all__ = [
    "BlockAnalysis",
    "ModelAnalysis",
]
