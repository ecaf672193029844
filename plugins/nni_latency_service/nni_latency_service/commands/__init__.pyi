# SPDX-License-Identifier: Apache-2.0
from ._query import load_predictors, query_command
from ._serve import serve_command

__all__ = [
    "load_predictors",
    "query_command",
    "serve_command",
]
