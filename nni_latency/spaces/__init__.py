# SPDX-License-Identifier: Apache-2.0
"""Model spaces, and how to walk one into its candidates."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
