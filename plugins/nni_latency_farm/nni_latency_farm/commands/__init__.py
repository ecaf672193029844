# SPDX-License-Identifier: Apache-2.0
"""The commands that this plugin adds to ``nni-latency``."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
