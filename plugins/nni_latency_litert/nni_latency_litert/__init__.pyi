# SPDX-License-Identifier: Apache-2.0
from ._conversion import convert, converter_version, weights_of
from ._runtime import LiteRt

__all__ = ["LiteRt", "convert", "converter_version", "weights_of"]
