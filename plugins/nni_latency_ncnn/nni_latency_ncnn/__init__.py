# SPDX-License-Identifier: Apache-2.0
"""ncnn as a runtime for nni_latency, by way of ONNX and pnnx."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
