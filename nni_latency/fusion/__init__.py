# SPDX-License-Identifier: Apache-2.0
"""Detection of the operators that a runtime fuses, on small networks, and the file of the rules."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
