# SPDX-License-Identifier: Apache-2.0
"""Lookup tables: costs of a space's candidates on one platform, and their construction."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
