# SPDX-License-Identifier: Apache-2.0
"""Retraining of predictors as a database grows, their stored versions, and predictors of this machine."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
