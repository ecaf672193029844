# SPDX-License-Identifier: Apache-2.0
"""Transfer: adaptation to a new device with a few measured networks, using known devices."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
