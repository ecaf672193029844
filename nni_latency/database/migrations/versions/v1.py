"""Version 1: what is measured, campaigns, what was measured, answers and predictors."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "1"
down_revision = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make the tables."""
    _make_what_is_described()
    _make_campaigns()
    _make_what_was_measured()
    _make_answers()
    _make_predictors()
    op.create_table(
        "counters",
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("value", _NUMBER, nullable=False),
    )


def _make_what_is_described() -> None:
    op.create_table(
        "platforms",
        sa.Column("id", _NUMBER, primary_key=True),
        sa.Column("digest", sa.Text(), nullable=False, unique=True),
        sa.Column("identity", sa.Text(), nullable=False, index=True),
        sa.Column("name", sa.Text(), nullable=False, index=True),
        sa.Column("content", sa.Text(), nullable=False),
    )
    op.create_table(
        "protocols",
        sa.Column("id", _NUMBER, primary_key=True),
        sa.Column("digest", sa.Text(), nullable=False, unique=True),
        sa.Column("content", sa.Text(), nullable=False),
    )
    op.create_table(
        "graphs",
        sa.Column("digest", sa.Text(), primary_key=True),
        sa.Column("content", sa.Text(), nullable=False),
    )


def _make_campaigns() -> None:
    op.create_table(
        "campaigns",
        sa.Column("id", _NUMBER, primary_key=True),
        sa.Column("identifier", sa.Text(), nullable=False, unique=True),
        sa.Column("identity", sa.Text(), nullable=False, index=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("platform_id", _NUMBER, sa.ForeignKey("platforms.id"), nullable=False),
        sa.Column("protocol_id", _NUMBER, sa.ForeignKey("protocols.id"), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("package_version", sa.Text(), nullable=False),
        sa.Column("begun", sa.Double(), nullable=False),
        sa.Column("written", sa.Double(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("changes", _NUMBER, nullable=False),
        sa.Column("n_records", _NUMBER, nullable=False),
        sa.Column("n_samples", _NUMBER, nullable=False),
    )
    op.create_table(
        "subjects",
        _campaign(primary_key=True),
        sa.Column("number", sa.Integer(), primary_key=True),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False, index=True),
        sa.Column("specification", sa.Text(), nullable=False),
        sa.Column("graph", sa.Text(), sa.ForeignKey("graphs.digest")),
        sa.UniqueConstraint("campaign_id", "key"),
    )


def _make_what_was_measured() -> None:
    op.create_table(
        "records",
        sa.Column("id", _NUMBER, primary_key=True),
        _campaign(),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("process", sa.Integer(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("duration", sa.Double(), nullable=False),
        sa.Column("reference", sa.Double(), nullable=False),
        sa.Column("subjects", sa.Text(), nullable=False),
        sa.Column("samples", sa.Text(), nullable=False),
        sa.Column("parts", sa.Text(), nullable=False),
        sa.Column("fallbacks", sa.Text()),
        sa.Index("ix_records_campaign_id_round", "campaign_id", "round"),
        sa.Index("ix_records_campaign_id_subjects", "campaign_id", "subjects"),
    )
    op.create_table(
        "conditions",
        sa.Column("id", _NUMBER, primary_key=True),
        _campaign(),
        sa.Column("moment", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Index("ix_conditions_campaign_id", "campaign_id"),
    )
    op.create_table(
        "failures",
        sa.Column("id", _NUMBER, primary_key=True),
        _campaign(),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Index("ix_failures_campaign_id", "campaign_id"),
    )


def _make_answers() -> None:
    op.create_table(
        "answers",
        _campaign(primary_key=True),
        sa.Column("number", sa.Integer(), primary_key=True),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("platform_id", _NUMBER, sa.ForeignKey("platforms.id"), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("summary", sa.Text()),
        sa.Index("ix_answers_digest_platform_id_at", "digest", "platform_id", "at"),
    )


def _make_predictors() -> None:
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


def _campaign(*, primary_key: bool = False) -> sa.Column[int]:
    reference = sa.ForeignKey("campaigns.id", ondelete="CASCADE")
    return sa.Column("campaign_id", _NUMBER, reference, primary_key=primary_key, nullable=False)
