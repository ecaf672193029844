# SPDX-License-Identifier: Apache-2.0
from ._detection import FusionSchedule, detect_fusion
from ._document import FUSION, fusion_schema, read_rules, save_rules
from ._probes import PROBES, Probe, operator_names, parse_probes

__all__ = [
    "FUSION",
    "PROBES",
    "FusionSchedule",
    "Probe",
    "detect_fusion",
    "fusion_schema",
    "operator_names",
    "parse_probes",
    "read_rules",
    "save_rules",
]
