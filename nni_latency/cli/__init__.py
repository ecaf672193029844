# SPDX-License-Identifier: Apache-2.0
"""The command line: thin commands over the library, one module each, and what the commands of plugins are made of."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
