"""Write the JSON schema of lookup tables to reference/lookup_table.schema.json. Run it after the format has changed."""

from __future__ import annotations

import json
from pathlib import Path

from nni_latency.files import write_atomically
from nni_latency.tables import table_schema

if __name__ == "__main__":
    target = Path(__file__).parent / "reference" / "lookup_table.schema.json"
    write_atomically(target, json.dumps(table_schema(), indent=2) + "\n")
