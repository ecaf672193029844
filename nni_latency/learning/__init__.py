"""Predictors that are refitted as a database grows, and the versions of them that it keeps."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
