# SPDX-License-Identifier: Apache-2.0
"""The database behind everything that is measured: SQLite in the user's data folder, or PostgreSQL."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
