"""Every bound in one place; the unit is the last word of each name."""

from __future__ import annotations

from typing import Final

MIB: Final = 1024 * 1024

# Streams.
RECORD_SIZE_BYTES: Final = 2 * MIB
"""Largest encoded record; topics allow as much."""
PLAN_EXPERIENCES: Final = 16_384
"""The experiences of one batch: at most 82 bytes each, with a group of its own, so that one record holds the plan."""
PLAN_ROWS: Final = 50_000
"""The dataset rows of one batch, beside its experiences: 12 bytes each at most."""
GROUP_MEMBERS: Final = 16_384
"""Rollouts of one task: 96 bytes each at most in the record that closes their group."""
INLINE_ARRAY_SIZE_BYTES: Final = 1 * MIB
"""Token arrays up to this size travel in the event."""
APPEND_RECORDS: Final = 4096
"""Most records in one append."""
APPEND_SIZE_BYTES: Final = 16 * MIB
"""The largest append of `append_when_space`, which cuts a larger one into parts."""
APPEND_QUEUE_RECORDS: Final = 16384
"""Records waiting for the log's writer before producers wait."""
GROUP_COMMIT_RECORDS: Final = 2048
"""Most records in one transaction of the embedded log."""
APPEND_QUEUE_SIZE_BYTES: Final = 64 * MIB
"""Bytes waiting for the log's writer before producers wait."""
GROUP_COMMIT_SIZE_BYTES: Final = 16 * MIB
"""Most bytes in one transaction of the embedded log; a larger append is cut."""
LOG_RING_SIZE_BYTES: Final = 32 * MIB
"""Newest records that the embedded log keeps in memory for its followers, with the objects around their bytes."""
FETCH_RECORDS: Final = 1024
FETCH_SIZE_BYTES: Final = 8 * MIB
FRAME_SIZE_BYTES: Final = 64 * MIB
"""Largest frame on the log's socket."""
APPENDS_SIZE_BYTES: Final = 4 * MIB
"""Small appends that share one frame; while it is on its way the daemon writes the one before."""
LOG_CONNECTIONS: Final = 256
STARTUP_VERIFY_SIZE_BYTES: Final = 256 * MIB
"""The chain of this many newest bytes is recomputed before the embedded log opens."""
ORPHAN_GRACE_S: Final = 10.0
"""A worker retries the log for this long after it lost it, then exits. Longer than a daemon takes to start again."""

# Experiments.
CONFIG_SIZE_BYTES: Final = 1 * MIB
CONFIG_DEPTH: Final = 24
CONFIG_ALIASES: Final = 64
CONFIG_NODES: Final = 20_000
"""Values in an experiment file, aliases and references expanded."""
CONFIG_ERRORS: Final = 50
"""Most errors of one file that are shown."""
REQUEST_SIZE_BYTES: Final = 4 * MIB
HTTP_HEAD_S: Final = 30.0
"""A client that takes longer to say what it wants is refused."""
HTTP_BODY_S: Final = 20.0
"""A body that has not come after so long must have come at a rate of at least `HTTP_BODY_BYTES_PER_S` since then."""
HTTP_BODY_BYTES_PER_S: Final = 16 * 1024
HTTP_WHOLE_BODY_S: Final = 300.0
"""A body that takes longer is refused, at any rate."""
HTTP_UNREAD_S: Final = 120.0
"""A client that reads nothing of its answer for so long is cut off."""
HTTP_CONNECTIONS: Final = 4096
"""Connections of one server, if its process may open a third more files; beyond, those that wait give way."""
QUEUED_EXPERIMENTS: Final = 1000
"""Experiments that wait in the queue, of all askers together."""
PRODUCER_QUEUED_EXPERIMENTS: Final = 500
"""Of these, those of programs that submit by records."""
READ_TOKEN_CONNECTIONS: Final = 32
"""Requests of one token of role read that are under way at once; so below. `rftd token add` sets others."""
READ_TOKEN_STREAMS: Final = 8
SUBMIT_TOKEN_SUBMISSIONS_PER_HOUR: Final = 120
SUBMIT_TOKEN_QUEUED_EXPERIMENTS: Final = 50
SUBMIT_TOKEN_CONNECTIONS: Final = 64
SUBMIT_TOKEN_STREAMS: Final = 16
ADMIN_TOKEN_SUBMISSIONS_PER_HOUR: Final = 600
ADMIN_TOKEN_QUEUED_EXPERIMENTS: Final = 500
ADMIN_TOKEN_CONNECTIONS: Final = 128
ADMIN_TOKEN_STREAMS: Final = 32
TEMPLATE_STEPS: Final = 1_000_000
"""Steps of a chat template for one conversation; one of a thousand messages takes some ten thousand."""
TEMPLATE_S: Final = 10.0
"""Processor time of one."""
TASKSET_ROW_SIZE_BYTES: Final = 1 * MIB
REWARD_LARGEST: Final = 1e30
"""Rewards beyond it, and below its negative, are refused: in float32, sums and squares of them are infinite."""

# Work.
EVAL_CHUNK_ROWS: Final = 256
"""Held-out rows that one eval lease covers; where rows are answered several times, as many answers."""
FAILED_GROUPS_IN_A_ROW: Final = 8
"""After this many closed groups without one member the experiment fails with their error."""
INCOMPLETE_BATCHES_IN_A_ROW: Final = 10
"""After so many batches' worth of closed groups, none with enough members to be trained, the experiment fails."""
RECENT_GROUPS: Final = 64
"""Newest closed groups of a stage whose rollouts say how long a rollout takes."""
TASK_REQUESTS: Final = 1_000_000
"""Requests that add tasks to one experiment; each is remembered for ever, so that its repetition adds nothing."""
OPEN_REQUESTS: Final = 32_768
"""Open requests of other programs in one partition that a daemon remembers; those behind them stay in the log."""
DRAW_ROWS: Final = 1024
"""The most rows of a taskset that are drawn at a time."""
SELECTOR_ROWS: Final = 1_000_000
"""The most rows of a taskset whose selector looks at columns: the daemon has those in memory."""
KEPT_REWARDS: Final = 131_072
"""Closed groups of a taskset whose rewards its selector is told at least, once there were as many."""
DYNAMIC_TIMEOUT_LEAST_S: Final = 1.0
"""A time-out that follows recent durations is no shorter than this."""
REISSUE_LEAST_S: Final = 1.0
"""A rollout is no straggler before it took so long."""
ERROR_TEXT_CHARS: Final = 2000
CANCEL_GRACE_S: Final = 5.0
"""A workflow that was cancelled is given up on after this long."""
ORPHANED_ROLLOUTS: Final = 8
"""After this many workflows that did not end when they were cancelled, their process is started anew."""
WORKER_SLOTS: Final = 16
"""Explorers of one experiment that are told apart: each reads the leases of its slot, a partition of `rftd.tasks`."""
RANKS: Final = 1024
"""Processes of one trainer, over all its nodes."""
RANK_NODES_S: Final = 240.0
"""The longest that a trainer waits for its other nodes, on which Ray starts a process each."""
CALL_TIMEOUT_S: Final = 10_000_000.0
"""The longest that anybody can let one call of the ranks take, some months."""
RANK_CALL_TIMEOUT_S: Final = 1800.0
"""The longest that it takes where nothing is said."""
HEARTBEAT_INTERVAL_S: Final = 1.0
WORKER_LOST_AFTER_S: Final = 15.0
WORKER_START_TIMEOUT_S: Final = 300.0
"""A worker process that has not joined after this long is killed and started anew; large models load slowly."""
RESTART_BACKOFF_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
RESTARTS_IN_A_ROW: Final = 8
"""Restarts of one worker without progress before the experiment pauses for it."""
STALLED_BACKOFF_S: Final = (10.0, 20.0, 40.0, 60.0)
"""The pause then, until the worker is tried anew: what it depends on may come back by itself."""
LEFTOVER_GRACE_S: Final = 2.0
"""Processes that a worker left running are asked to end, and killed after this long; its successor waits for that."""
CONDEMNED_S: Final = 30.0
"""An explorer that refuses what others of its experiment do is started again after so long."""
RELEASE_AFTER_S: Final = 30.0
"""The time after a pause that only a person ends, before the experiment's workers and its slot are released."""
PAUSE_BACKOFF_S: Final = (1.0, 5.0, 15.0, 60.0, 300.0)
"""The waits after which a paused experiment is tried anew, where only that shows whether its cause is gone."""
LOSSES_BEFORE_ALONE: Final = 2
"""Workers that died with a group among others before it is leased alone."""
LOSSES_ALONE: Final = 3
"""Workers that died with a group alone before its task has failed, if `max_retry_times` allows so many."""
ENDPOINT_CALLS: Final = 1000
"""Answers that one rollout may ask its endpoint for."""
ENDPOINT_CONCURRENT_CALLS: Final = 64
"""Answers that are drawn for one rollout's endpoint at a time; a client is told to come again."""
ENDPOINT_TOKENS: Final = 1_000_000
"""Tokens that one rollout may draw over its endpoint."""
ENDPOINT_BODY_SIZE_BYTES: Final = 4 * MIB
"""The largest request of an agent program. More is read, and thrown away, up to sixteen times this."""
ENDPOINT_KEEP_ALIVE_S: Final = 75
"""Longer than clients keep a connection, so that none is closed as it is used again."""
ENDPOINT_BODY_S: Final = 60.0
"""The longest that the body of a call of the endpoint may take to arrive."""
ENDPOINT_KEPT_SIZE_BYTES: Final = 32 * MIB
"""Bodies of answered calls that a rollout keeps, so that a repeated request is told the same. The oldest go first."""
SERVED_CALLS: Final = 1024
"""Calls of clients that a serving explorer answers at a time, most of which wait; another is told to come again."""
SERVED_ANSWERS: Final = 100_000
"""Answers without feedback that a serving experiment keeps; older ones can have none any more."""
SERVED_RUNS: Final = 100_000
"""Runs with feedback that may wait to be committed."""
SERVED_ROWS: Final = 10_000
"""Committed groups whose tokens are kept behind the newest that was given out; those before are in the log."""
AUXILIARY_TURNS: Final = 64
"""Answers of auxiliary models that a rollout's record holds; of later ones it has none."""
AUXILIARY_TEXT_CHARS: Final = 32_768
"""Characters of those answers together; what is longer is cut there."""
EVAL_AUXILIARY_CHARS: Final = 262_144
"""The same in the scores of a range of held-out rows, of all rows together."""
EVAL_ANSWERS: Final = 4096
"""Answers of one evaluation whose texts are kept; of more, a sample with the best and the worst."""
EVAL_ANSWERS_CHARS: Final = 16 * MIB
"""Characters of the texts of one range of held-out rows, together; what is longer is cut, evenly."""
EVAL_ANSWER_CHARS: Final = 131_072
"""Characters of one text among them."""
SERVICE_ANSWER_SIZE_BYTES: Final = 4 * MIB
"""The largest answer of a service that is asked as an auxiliary model."""
DRAIN_TIMEOUT_S: Final = 10.0
KILL_TIMEOUT_S: Final = 5.0
"""A process that was killed and has not ended after this long hangs in the operating system; it is named and left."""
PLAN_AHEAD_BATCHES: Final = 2
"""Batches planned and not yet trained; one trains while the next waits."""
PLAN_AHEAD_MOST_BATCHES: Final = 32
"""Batches planned and not yet trained where the staleness bound is wide: an eighth of it, but no more than this."""
ROOM_AHEAD_VERSIONS: Final = 8
"""Buffers and kept weights have room for so many versions ahead of the trainer, where nothing says less or more."""
SNAPSHOT_RECORDS: Final = 20_000
"""A fold is written to a file after so many records, and with each checkpoint."""
SNAPSHOT_INTERVAL_S: Final = 2.0
"""The least time between two snapshots."""
REUSED_RECORDS_SIZE_BYTES: Final = 128 * MIB
"""Records of experiences that may be used again, kept by the trainer; what is older is read from the log anew."""
EVAL_AT_ONCE: Final = 64
"""The rows of evaluations that run at once on an engine of their own."""
KEPT_WEIGHT_VERSIONS: Final = 4
"""Newest published versions whose files stay; older ones are retired once nothing pins them."""
WEIGHTS_TRANSFER_S: Final = 60.0
"""The longest wait for one part of a transfer between devices; a side that hangs for longer is given up."""

DISK_RESERVE_SIZE_BYTES: Final = 1024 * MIB
"""The space that stays free on each volume that the daemon writes to, or 5 % of the volume if that is less."""

# State database.
READER_CACHE_KIB: Final = 512
"""The page cache of each connection that reads tables in a SQLite file: there may be many, and all of them fill up."""
WRITER_CACHE_KIB: Final = 16 * 1024
"""The page cache of the connection that follows the log, if the tables are in a SQLite file."""
BULK_CACHE_KIB: Final = 64 * 1024
"""The page cache of a connection that fills tables from the log's first records, and lets go of it then."""
REBUILD_RECORDS: Final = 8 * FETCH_RECORDS
"""Records of one transaction of a rebuild: keys are random, so a page that many rows meet is written once."""
STATE_WAL_SIZE_BYTES: Final = 64 * 1024 * 1024
"""The longest write-ahead file of the tables in SQLite; a longer one is emptied."""
DATABASE_POOL_CONNECTIONS: Final = 8
"""Most connections of one process to Postgres, the projector's among them."""
DATABASE_POOL_WAIT_S: Final = 10.0
"""A reader waits for a free one for this long."""
SQLITE_POOL_CONNECTIONS: Final = 15
"""Most connections of one process to tables in a SQLite file, each on a thread of its own."""
SQLITE_POOL_WAIT_S: Final = 30.0
"""Longer than for Postgres: on a busy machine the reads before one are slow, and none hangs."""
DATABASE_IDLE_S: Final = 30.0
"""Connections that were not needed for this long are closed."""
DATABASE_CONNECT_TIMEOUT_S: Final = 5.0
DATABASE_STATEMENT_TIMEOUT_S: Final = 30.0
DATABASE_LOCK_TIMEOUT_S: Final = 10.0
"""Shorter than a statement's: a projector that meets another one's lock says so, instead of a time-out."""
PROJECTOR_RIVAL_S: Final = 5.0
"""A projector waits for this long until the one before it has let go of the database."""
STATE_CHARS: Final = 256
"""The longest text for the state in which a step of a rollout began: a hash, not the state itself."""
DAEMON_LOG_SIZE_BYTES: Final = 16 * MIB
"""The most that the daemon's own log file holds; the one before it is kept, too."""
WORKER_LOG_SIZE_BYTES: Final = 64 * MIB
"""The size at which a worker's log file begins anew: a workflow may print whatever it likes."""
WORKER_LOG_KEPT_BYTES: Final = 16 * MIB
"""The part of it that is kept then, in the file beside it."""
