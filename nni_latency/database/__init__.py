"""The database behind everything that is measured: SQLite in the user's data folder, or PostgreSQL."""

from nni_latency.database._database import Database
from nni_latency.database._location import DATABASE_VARIABLE, default_location
from nni_latency.database._rows import DatabaseWarning
from nni_latency.database._store import DatabaseStore, open_store

__all__ = [
    "DATABASE_VARIABLE",
    "Database",
    "DatabaseStore",
    "DatabaseWarning",
    "default_location",
    "open_store",
]
