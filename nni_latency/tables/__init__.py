"""Lookup tables: what a space's candidates cost on one platform, and how such a table is built."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
