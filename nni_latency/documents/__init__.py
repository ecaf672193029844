# SPDX-License-Identifier: Apache-2.0
"""JSON files with a format and a version: how they are read and checked, and the parts that several of them have."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
