"""Transfer: a new device from a handful of networks, with the help of devices that are known."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
