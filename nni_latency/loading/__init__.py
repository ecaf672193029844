# SPDX-License-Identifier: Apache-2.0
"""`load_estimator` and the like: an object from an object, a file, or the name of a plugin."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
