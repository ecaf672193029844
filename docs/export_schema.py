# SPDX-License-Identifier: Apache-2.0
"""Write the JSON schemas of tables to reference/*.schema.json. Run it after a format has changed."""

from __future__ import annotations

import json
from pathlib import Path

from nni_latency.cli import search_schema
from nni_latency.datasets import networks_schema
from nni_latency.energy import portable_schema
from nni_latency.estimators import acts_schema, transfer_schema
from nni_latency.files import write_atomically
from nni_latency.fusion import fusion_schema
from nni_latency.kernels import kernels_schema
from nni_latency.micro_benchmarks import points_schema
from nni_latency.profiling import profile_schema
from nni_latency.tables import table_schema

SCHEMAS = {
    "acts": acts_schema,
    "benchmark_points": points_schema,
    "energy": portable_schema,
    "fusion": fusion_schema,
    "kernels": kernels_schema,
    "lookup_table": table_schema,
    "networks": networks_schema,
    "operator_profile": profile_schema,
    "search": search_schema,
    "transfer": transfer_schema,
}

if __name__ == "__main__":
    for name, schema in SCHEMAS.items():
        target = Path(__file__).parent / "reference" / f"{name}.schema.json"
        write_atomically(target, json.dumps(schema(), indent=2) + "\n")
