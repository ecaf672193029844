"""Operators of several networks: what they take inside the networks and alone, and which kinds of them count."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
