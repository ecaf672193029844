"""Kernels: what a runtime executes as one, how long each takes on a platform, and predictors learned from that."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
