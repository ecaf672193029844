# SPDX-License-Identifier: Apache-2.0
from ._runtime import TensorRt

__all__ = ["TensorRt"]
