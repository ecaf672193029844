# SPDX-License-Identifier: Apache-2.0
"""Families of networks, and graph predictors of their latency."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
