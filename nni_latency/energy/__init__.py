"""Time, power and energy of operators: read from elsewhere, predicted across devices, and added up to networks."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
