"""Version 3: which subjects were measured alone, by digest and platform."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "3"
down_revision = "2"

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

#: Subjects with records alone that have not failed, and when the last of these was taken.
_FILL = """
INSERT INTO answers (campaign_id, number, digest, platform_id, at)
SELECT subjects.campaign_id, subjects.number, subjects.digest, campaigns.platform_id, alone.at
FROM (SELECT campaign_id, subjects, MAX(at) AS at FROM records GROUP BY campaign_id, subjects) AS alone
JOIN subjects ON subjects.campaign_id = alone.campaign_id AND alone.subjects = '[' || subjects.number || ']'
JOIN campaigns ON campaigns.id = alone.campaign_id
WHERE subjects.digest <> '' AND NOT EXISTS (
    SELECT 1 FROM failures WHERE failures.campaign_id = subjects.campaign_id AND failures.subject = subjects.key
)
"""


def upgrade() -> None:
    """Make the table and its index, and fill it from the records."""
    op.create_table(
        "answers",
        sa.Column(
            "campaign_id",
            _NUMBER,
            sa.ForeignKey("campaigns.id", ondelete="CASCADE"),
            primary_key=True,
            nullable=False,
        ),
        sa.Column("number", sa.Integer(), primary_key=True),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("platform_id", _NUMBER, sa.ForeignKey("platforms.id"), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("summary", sa.Text()),
        sa.Index("ix_answers_digest_platform_id_at", "digest", "platform_id", "at"),
    )
    op.create_index("ix_records_campaign_id_subjects", "records", ["campaign_id", "subjects"])
    op.execute(_FILL)


def downgrade() -> None:
    """Take both out again; all that they say stands in the records."""
    op.drop_index("ix_records_campaign_id_subjects", "records")
    op.drop_table("answers")
