# SPDX-License-Identifier: Apache-2.0
"""Analysis of the work, memory and cost of every block of a network, with suggestions."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
