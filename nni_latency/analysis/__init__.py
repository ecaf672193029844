"""Analysis: what every block of a network computes, needs and costs, and what could be changed."""

from nni_latency.analysis._model_analysis import BlockAnalysis, ModelAnalysis

__all__ = ["BlockAnalysis", "ModelAnalysis"]
