# SPDX-License-Identifier: Apache-2.0
"""Version 1: the tables that `nni_latency.database._schema` makes for a new database. Later versions change them."""

revision = "1"
down_revision = None
