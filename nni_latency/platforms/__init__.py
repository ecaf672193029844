# SPDX-License-Identifier: Apache-2.0
"""Where a cost was taken: the device and everything else that decides what a number means."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
