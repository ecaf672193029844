# SPDX-License-Identifier: Apache-2.0
"""TensorRT as a runtime for nni_latency, divided into layers and operators by its own profile."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
