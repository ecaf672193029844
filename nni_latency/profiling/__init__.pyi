# SPDX-License-Identifier: Apache-2.0
from ._campaign_file import CampaignFile, ListedModel
from ._document import AloneCost, ModelProfile, Part, ProfiledOperator, profile_schema
from ._models import ProfiledModel, family_model, own_model, plain_name, published_names, vision_model, vision_names
from ._profile import OperatorProfile, select_kinds, shortfalls
from ._profiler import PROFILE_PROTOCOL, OperatorProfiler, check_profiles, profile_operators
from ._visits import WAYS, alone_subject

__all__ = [
    "PROFILE_PROTOCOL",
    "WAYS",
    "AloneCost",
    "CampaignFile",
    "ListedModel",
    "ModelProfile",
    "OperatorProfile",
    "OperatorProfiler",
    "Part",
    "ProfiledModel",
    "ProfiledOperator",
    "alone_subject",
    "check_profiles",
    "family_model",
    "own_model",
    "plain_name",
    "profile_operators",
    "profile_schema",
    "published_names",
    "select_kinds",
    "shortfalls",
    "vision_model",
    "vision_names",
]
