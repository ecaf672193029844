"""Version 4: versions of predictors, with their errors on networks that none has learned from."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "4"
down_revision = "3"

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "predictors",
        sa.Column("id", _NUMBER, primary_key=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("package_version", sa.Text(), nullable=False),
        sa.Column("n_networks", sa.Integer(), nullable=False),
        sa.Column("n_held_out", sa.Integer(), nullable=False),
        sa.Column("n_records", _NUMBER, nullable=False),
        sa.Column("errors", sa.Text(), nullable=False),
        sa.Column("is_current", sa.Boolean(), nullable=False),
        sa.Column("remark", sa.Text(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Index("ix_predictors_name", "name"),
    )


def downgrade() -> None:
    """Take the table out again; the predictors in it are lost."""
    op.drop_table("predictors")
