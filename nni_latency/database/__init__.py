"""The database behind everything that is measured: SQLite in the user's data folder, or PostgreSQL."""

from typing import TYPE_CHECKING

from nni_latency.database._database import Database
from nni_latency.database._export import COLUMNS, export_samples
from nni_latency.database._location import DATABASE_VARIABLE, MEMORY, default_location
from nni_latency.database._overview import KindOverview, SubjectOverview, find_subjects, summarise
from nni_latency.database._prune import StaleCampaign, remove_campaigns, stale_campaigns
from nni_latency.database._rows import DatabaseWarning
from nni_latency.database._store import DatabaseStore, open_store
from nni_latency.database._transfer import Copied, copy_database
from nni_latency.imports import lazy_exports

if TYPE_CHECKING:
    from nni_latency.database._memo import copy_memo

__all__ = [
    "COLUMNS",
    "DATABASE_VARIABLE",
    "MEMORY",
    "Copied",
    "Database",
    "DatabaseStore",
    "DatabaseWarning",
    "KindOverview",
    "StaleCampaign",
    "SubjectOverview",
    "copy_database",
    "copy_memo",
    "default_location",
    "export_samples",
    "find_subjects",
    "open_store",
    "remove_campaigns",
    "stale_campaigns",
    "summarise",
]

# It needs torch, and the rest of this room does not.
__getattr__, __dir__ = lazy_exports(__name__, {"copy_memo": "nni_latency.database._memo"})
