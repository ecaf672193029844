# SPDX-License-Identifier: Apache-2.0
"""Measuring on remote machines: a scheduler, workers that own a device each, and benches on them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
