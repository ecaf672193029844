# SPDX-License-Identifier: Apache-2.0
"""Measuring: subjects and schedules, the one loop, benches and runtimes, and the records that come of it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
