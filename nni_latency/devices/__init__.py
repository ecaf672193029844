# SPDX-License-Identifier: Apache-2.0
"""Devices on which nothing of this package is installed, reached by SSH, by ADB, or as another Python."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
