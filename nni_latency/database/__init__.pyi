# SPDX-License-Identifier: Apache-2.0
from ._answers import count_stored, list_known, measured_graphs
from ._database import Database
from ._export import COLUMNS, export_samples
from ._location import DATABASE_VARIABLE, MEMORY, default_location
from ._overview import (
    DriftPoint,
    KindOverview,
    PlatformDrift,
    SubjectOverview,
    find_subjects,
    latest_platforms,
    platform_drift,
    summarise,
)
from ._predictors import (
    PredictorVersion,
    add_predictor,
    predictor_content,
    predictor_versions,
    take_predictor,
)
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
    "DriftPoint",
    "KindOverview",
    "PlatformDrift",
    "PredictorVersion",
    "StaleCampaign",
    "SubjectOverview",
    "add_predictor",
    "copy_database",
    "count_stored",
    "default_location",
    "export_samples",
    "find_subjects",
    "latest_platforms",
    "list_known",
    "measured_graphs",
    "open_store",
    "platform_drift",
    "predictor_content",
    "predictor_versions",
    "remove_campaigns",
    "stale_campaigns",
    "summarise",
    "take_predictor",
]
