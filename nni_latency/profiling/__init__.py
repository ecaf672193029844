# SPDX-License-Identifier: Apache-2.0
"""Profiling of the operators of several networks, inside the networks and alone, and of the significant kinds."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
