from ._database import Database
from ._export import COLUMNS, export_samples
from ._location import DATABASE_VARIABLE, MEMORY, default_location
from ._memo import copy_memo
from ._overview import KindOverview, SubjectOverview, find_subjects, summarise
from ._prune import StaleCampaign, remove_campaigns, stale_campaigns
from ._rows import DatabaseWarning
from ._store import DatabaseStore, open_store
from ._transfer import Copied, copy_database

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
