# SPDX-License-Identifier: Apache-2.0
"""Validation of an estimator on new measurements of whole networks."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
