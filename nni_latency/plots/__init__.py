# SPDX-License-Identifier: Apache-2.0
"""Pictures: what was measured and found, as PNG or SVG, all in one style."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
