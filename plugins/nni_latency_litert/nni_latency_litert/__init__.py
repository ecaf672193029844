# SPDX-License-Identifier: Apache-2.0
"""LiteRT (TFLite with XNNPACK) as a runtime for nni_latency."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
