from ._keys import keys_command
from ._query import load_predictors, query_command
from ._serve import serve_command

__all__ = [
    "keys_command",
    "load_predictors",
    "query_command",
    "serve_command",
]
