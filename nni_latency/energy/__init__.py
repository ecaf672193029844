# SPDX-License-Identifier: Apache-2.0
"""Time, power and energy of operators: external measurements, predictions across devices, and sums to networks."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
