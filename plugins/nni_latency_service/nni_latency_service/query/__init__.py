# SPDX-License-Identifier: Apache-2.0
"""Latency queries: recorded, measured or predicted; local or through a service."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
