"""Analysis: what every block of a network computes, needs and costs, and what could be changed."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
