# SPDX-License-Identifier: Apache-2.0
"""HTTP service that answers latency queries, and its web page."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
