# SPDX-License-Identifier: Apache-2.0
"""For tests of plugins: a fake clock, a fake runtime, and contract suites for everything that a plugin may bring."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
