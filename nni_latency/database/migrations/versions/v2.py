"""Version 2: what did not run as it was asked for stands in the records."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "2"
down_revision = "1"


def upgrade() -> None:
    """Add the column."""
    op.add_column("records", sa.Column("fallbacks", sa.Text()))


def downgrade() -> None:
    """Take the column out again; what it says is lost."""
    op.drop_column("records", "fallbacks")
