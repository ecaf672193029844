# SPDX-License-Identifier: Apache-2.0
"""True costs for neural architecture search: latency first, then energy, memory and throughput.

The names below load what they need on first use, so importing the package costs next to nothing.
"""

import lazy_loader

from nni_latency.version import __version__ as __version__

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
