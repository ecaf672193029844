from ._model_analysis import BlockAnalysis, ModelAnalysis

__all__ = [
    "BlockAnalysis",
    "ModelAnalysis",
]
