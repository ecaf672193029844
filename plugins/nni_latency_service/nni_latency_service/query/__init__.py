"""Asking for a latency: known, measured or predicted; here or at a service."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
