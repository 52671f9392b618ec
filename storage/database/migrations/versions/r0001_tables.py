"""The tables of the first release."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa
from alembic import op

revision = "0.1"
"""Id of this revision, as stored in the database."""
down_revision = None
"""Id of the revision before; None for the first one."""
branch_labels = None
"""Alembic's names of branches; None without branches."""
depends_on = None
"""Alembic's ids of revisions required besides the previous one; None without any."""

# The tables are written out here, not imported from `storage/database/tables`: the modules change, and a revision must
# not.
_KINDS: Final[dict[str, Any]] = {
    "id": sa.LargeBinary(),
    "text": sa.String().with_variant(sa.String(collation="C"), "postgresql"),
    "int": sa.BigInteger(),
    "real": sa.Float(),
    "flag": sa.Boolean(),
}
"""SQLAlchemy type for each kind of column used below."""
_CLUSTERED: Final = frozenset(
    (
        "batch_items",
        "batches",
        "counts",
        "groups",
        "leases",
        "once",
        "retirements",
        "stage_counts",
    )
)
"""Tables stored in their primary key's tree on SQLite (WITHOUT ROWID)."""
_TABLES: Final = (
    (
        "activations",
        "worker:id version:int generation:int",
        "experiment:id manifest:text checksum:text duration_s:real activated_ns:int activated_partition:int "
        "activated_offset:int",
    ),
    (
        "annotations",
        "experiment:id experience:id",
        "starred:flag starred_ns:int starred_partition:int starred_offset:int labels:text labelled_ns:int "
        "labelled_partition:int labelled_offset:int",
    ),
    (
        "batch_items",
        "batch:id item:int",
        "experience:id group_id:id partition:int offset:int staleness_versions:int use:int digest:text row:int "
        "epoch:int planned_partition:int planned_offset:int",
    ),
    (
        "batches",
        "id:id",
        "experiment:id step:int stage:int items:int groups:int incomplete:flag staleness_mean:real staleness_p95:int "
        "staleness_max:int decided_at_ns:int planned_partition:int planned_offset:int abandoned_ns:int "
        "abandoned_code:text abandoned_reason:text abandoned_partition:int abandoned_offset:int max_uses:int "
        "eligible_at_ns:int",
    ),
    (
        "checkpoints",
        "experiment:id step:int generation:int",
        "stage:int stage_step:int path:text files:int size_bytes:int checksum:text sha256:text final:flag "
        "committed_ns:int committed_partition:int committed_offset:int deleted_ns:int deleted_reason:text "
        "deleted_partition:int deleted_offset:int",
    ),
    (
        "counts",
        "experiment:id kind:text reason:text",
        "count:int",
    ),
    (
        "dead_letters",
        "consumer:text stream:text partition:int offset:int",
        "code:text reason:text reported_partition:int reported_offset:int",
    ),
    (
        "eval_scores",
        "eval:id row_start:int writer:id",
        "lease:id experiment:id stage:int taskset:int version:int rows:int score:real "
        "tokens_mean:real scored_ns:int scored_partition:int scored_offset:int",
    ),
    (
        "evals",
        "id:id",
        "experiment:id stage:int taskset:text version:int generation:int rows:int score:real metrics:text "
        "completed_ns:int completed_partition:int completed_offset:int",
    ),
    (
        "experiences",
        "group_id:id rollout:int writer:id",
        "id:id experiment:id stage:int lease:id prompt_tokens:int response_tokens:int oldest_version:int "
        "newest_version:int reward:real priority:real metrics:text finish:text duration_s:real produced_ns:int "
        "produced_partition:int produced_offset:int failed_lease:id failed_experiment:id failed_stage:int "
        "failed_code:text failed_reason:text failed_ns:int failed_partition:int failed_offset:int spans:text "
        "state:text retired_reason:text retired_used:int step:int staleness_versions:int uses:int",
    ),
    (
        "experiments",
        "id:id",
        "project:text group_name:text name:text job_dir:text stages:int total_steps:int deterministic:flag seed:int "
        "config:text labels:text submitted_ns:int submitted_partition:int submitted_offset:int state:text "
        "state_ns:int state_code:text state_reason:text state_role:text state_partition:int state_offset:int "
        "started_ns:int started_partition:int started_offset:int parent:id forked_step:int forked_ns:int "
        "forked_partition:int forked_offset:int kept:text kept_path:text kept_reason:text kept_ns:int "
        "kept_partition:int kept_offset:int priority:int prioritized:int prioritized_ns:int prioritized_partition:int "
        "prioritized_offset:int signal_cause:text signal_reason:text signal_step:int signal_ns:int "
        "signal_partition:int signal_offset:int",
    ),
    (
        "fences",
        "stream:text partition:int experiment:id role:text",
        "epoch:int owner:id fenced_ns:int fenced_partition:int fenced_offset:int",
    ),
    (
        "generations",
        "experiment:id generation:int",
        "version:int checkpoint:text reason:text started_ns:int started_partition:int started_offset:int",
    ),
    (
        "groups",
        "id:id",
        "experiment:id stage:int sequence:int members:int member_map:text failed:int reward_mean:real code:text "
        "reason:text closed_ns:int closed_partition:int closed_offset:int tag:real tagged_partition:int "
        "tagged_offset:int",
    ),
    (
        "leases",
        "id:id",
        "kind:text experiment:id stage:int subject:id worker:id slot:int attempt:int deadline_s:real sequence:int "
        "taskset:int row_start:int row_end:int epoch:int rollouts:int version:int leased_ns:int leased_partition:int "
        "leased_offset:int expired_ns:int expired_reason:text expired_partition:int expired_offset:int",
    ),
    (
        "meta",
        "name:text",
        "value:text",
    ),
    (
        "notes",
        "experiment:id number:int",
        "experience:id text:text author:text noted_ns:int noted_partition:int noted_offset:int",
    ),
    (
        "once",
        "stream:text partition:int event:id",
        "applied_partition:int applied_offset:int",
    ),
    (
        "overdue_windows",
        "experiment:id stage:int number:int",
        "wanted:int version:int waited_s:real reason:text overdue_ns:int overdue_partition:int overdue_offset:int",
    ),
    (
        "positions",
        "stream:text partition:int",
        "next_offset:int chain:id!",
    ),
    (
        "retirements",
        "experience:id",
        "experiment:id reason:text uses:int decided_at_ns:int retired_partition:int retired_offset:int",
    ),
    (
        "stage_counts",
        "experiment:id stage:int kind:text reason:text length:int",
        "count:int prompt_tokens:int response_tokens:int",
    ),
    (
        "stages",
        "experiment:id stage:int",
        "name:text kind:text algorithm:text total_steps:int batch_size:int train_batch_size:int "
        "submitted_partition:int submitted_offset:int first_version:int started_ns:int started_partition:int "
        "started_offset:int last_version:int completed_ns:int completed_partition:int completed_offset:int "
        "best_version:int best_figure:text best_value:real best_base:real best_kept:text best_ns:int "
        "best_partition:int best_offset:int stopped_by:int stopped_reason:text stopped_ns:int stopped_partition:int "
        "stopped_offset:int",
    ),
    (
        "steps",
        "experiment:id step:int generation:int",
        "batch:id stage:int checksum:text sha256:text items:int tokens:int duration_s:real metrics:text "
        "completed_ns:int completed_partition:int completed_offset:int",
    ),
    (
        "transitions",
        "experiment:id number:int",
        "change:text code:text reason:text step:int moved_ns:int moved_partition:int moved_offset:int",
    ),
    (
        "warnings",
        "experiment:id origin:text number:int",
        "text:text warned_ns:int warned_partition:int warned_offset:int",
    ),
    (
        "weight_versions",
        "experiment:id version:int generation:int",
        "stage:int method:text path:text manifest:text checksum:text size_bytes:int published_ns:int "
        "published_partition:int published_offset:int retired_ns:int retired_reason:text retired_partition:int "
        "retired_offset:int",
    ),
    (
        "workers",
        "id:id",
        "experiment:id role:text slot:int host:text pid:int process_start_s:real capacity:int started_ns:int "
        "started_partition:int started_offset:int stopped_ns:int stopped_code:text stopped_reason:text "
        "stopped_memory_bytes:int "
        "stopped_partition:int stopped_offset:int lost_ns:int lost_reason:text lost_memory_bytes:int "
        "lost_partition:int lost_offset:int",
    ),
)
"""Name, key columns and other columns of each table, a column as NAME:KIND; `!` means not nullable."""
_INDEXES: Final = (
    ("batch_items_experience", "batch_items", ["experience"]),
    ("batches_experiment", "batches", ["experiment", "step"]),
    ("evals_experiment", "evals", ["experiment", "version"]),
    ("experiences_experiment", "experiences", ["experiment", "produced_ns"]),
    ("experiences_failed", "experiences", ["failed_experiment", "failed_ns"]),
    ("experiences_id", "experiences", ["id"]),
    ("experiences_reward", "experiences", ["experiment", "reward", "produced_ns"]),
    ("experiences_staleness", "experiences", ["experiment", "staleness_versions", "produced_ns"]),
    ("experiences_state", "experiences", ["experiment", "state", "produced_ns"]),
    ("experiences_versions", "experiences", ["experiment", "oldest_version"]),
    ("experiments_name", "experiments", ["name"]),
    ("experiments_parent", "experiments", ["parent"]),
    ("groups_empty", "groups", ["experiment", "closed_ns"]),
    ("groups_experiment", "groups", ["experiment", "stage", "sequence"]),
    ("leases_row", "leases", ["experiment", "row_start"]),
    ("leases_subject", "leases", ["subject"]),
    ("leases_worker", "leases", ["worker", "leased_ns"]),
    ("workers_experiment", "workers", ["experiment"]),
)
"""Name, table and columns of each index."""


_PARTIAL: Final = {
    "experiences_failed": "failed_offset IS NOT NULL",
    "experiences_staleness": "staleness_versions IS NOT NULL",
    "experiences_state": "state <> 'planned'",
    "groups_empty": "members = 0",
}
"""Conditions of the partial indexes."""


def upgrade() -> None:
    """Creates all tables and indexes of the first release, in Alembic's transaction."""
    for name, key, columns_text in _TABLES:
        columns = [_column(text, primary_key=True) for text in key.split()]
        columns += [_column(text) for text in columns_text.split()]
        op.create_table(name, *columns, sqlite_with_rowid=name not in _CLUSTERED)
    for name, table, indexed in _INDEXES:
        condition = sa.text(_PARTIAL[name]) if name in _PARTIAL else None
        op.create_index(name, table, indexed, sqlite_where=condition, postgresql_where=condition)


def downgrade() -> None:
    """Drops all tables of the first release, together with their indexes."""
    for name, _, _ in _TABLES:
        op.drop_table(name)


def _column(text: str, *, primary_key: bool = False) -> sa.Column[Any]:
    """Returns the column described by NAME:KIND."""
    name, _, kind = text.partition(":")
    nullable = not primary_key and not kind.endswith("!")
    return sa.Column(name, _KINDS[kind.rstrip("!")], primary_key=primary_key, nullable=nullable, autoincrement=False)
