from ._keys import command as keys
from ._query import command as query
from ._query import load_predictors
from ._serve import command as serve

__all__ = [
    "keys",
    "load_predictors",
    "query",
    "serve",
]
