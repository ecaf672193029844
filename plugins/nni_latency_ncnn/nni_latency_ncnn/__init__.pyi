# SPDX-License-Identifier: Apache-2.0
from ._runtime import Ncnn, convert

__all__ = ["Ncnn", "convert"]
