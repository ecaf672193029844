# SPDX-License-Identifier: Apache-2.0
"""Operators: descriptions of computations, independent of their cost."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
