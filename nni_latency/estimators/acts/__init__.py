# SPDX-License-Identifier: Apache-2.0
"""ACTS/INP/FLOPs predictor: a latency model of a device, fitted to 56 blocks."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
