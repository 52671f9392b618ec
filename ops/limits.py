"""Every bound in one place; the unit is the last word of each name."""

from __future__ import annotations

from typing import Final

MIB: Final = 1024 * 1024
"""Bytes of a mebibyte."""

# Streams.
RECORD_SIZE_BYTES: Final = 2 * MIB
"""Maximum size of an encoded record, of head and value together; topics of Kafka allow its headers besides."""
PLAN_EXPERIENCES: Final = 16_384
"""Maximum experiences of one batch: at most 82 bytes each, with a group of its own, so that one record holds the plan.
"""
PLAN_ROWS: Final = 50_000
"""Maximum dataset rows of one batch, besides its experiences: 12 bytes each at most."""
GROUP_MEMBERS: Final = 16_384
"""Maximum rollouts of one task: 96 bytes each at most in the record that closes their group."""
INLINE_ARRAY_SIZE_BYTES: Final = 1 * MIB
"""An experience's token arrays of up to this size together are part of the event; larger ones become artifacts."""
APPEND_RECORDS: Final = 4096
"""Maximum records in one append."""
APPEND_SIZE_BYTES: Final = 16 * MIB
"""Maximum size of an append of `append_when_space`, which splits larger ones."""
APPEND_QUEUE_RECORDS: Final = 16384
"""Records queued for the log's writer before producers must wait."""
GROUP_COMMIT_RECORDS: Final = 2048
"""Records from which no further append joins a transaction of the embedded log."""
APPEND_QUEUE_SIZE_BYTES: Final = 64 * MIB
"""Bytes queued for the log's writer before producers must wait."""
GROUP_COMMIT_SIZE_BYTES: Final = 16 * MIB
"""Bytes from which no further append joins a transaction of the embedded log; larger appends are split into parts of
this size.
"""
LOG_RING_SIZE_BYTES: Final = 32 * MIB
"""Newest records kept in memory by a process's log for its followers, including object overhead."""
FETCH_RECORDS: Final = 1024
"""Default maximum of records in one answer of the log."""
FETCH_SIZE_BYTES: Final = 8 * MIB
"""Default maximum size of one answer of the log."""
FRAME_SIZE_BYTES: Final = 64 * MIB
"""Largest frame on the log's socket."""
APPENDS_SIZE_BYTES: Final = 4 * MIB
"""Small appends combined in one frame; during its transfer the daemon writes the previous one."""
LOG_CONNECTIONS: Final = 256
"""Maximum connections of other processes to the embedded log's socket."""
STARTUP_VERIFY_SIZE_BYTES: Final = 256 * MIB
"""Number of newest bytes whose hash chain is recomputed before the embedded log opens."""
ORPHAN_GRACE_S: Final = 10.0
"""A worker that lost the log retries for this long, then exits. Longer than a restart of the daemon takes."""

# Experiments.
CONFIG_SIZE_BYTES: Final = 1 * MIB
"""Maximum size of an experiment file."""
CONFIG_DEPTH: Final = 24
"""Maximum depth of nested mappings and lists in an experiment file."""
SOURCE_SIZE_BYTES: Final = 64 * 1024
"""Largest Python file of a reward or workflow in an experiment file; every stage naming it holds its text."""
SOURCES: Final = 4
"""Maximum number of Python files of rewards and workflows in an experiment file."""
CONFIG_ALIASES: Final = 64
"""Maximum aliases in an experiment file."""
CONFIG_NODES: Final = 20_000
"""Maximum values in an experiment file, with aliases and references expanded."""
CONFIG_ERRORS: Final = 50
"""Maximum errors shown for one file."""
REQUEST_SIZE_BYTES: Final = 4 * MIB
"""Maximum size of the body of an HTTP request."""
HTTP_HEAD_S: Final = 30.0
"""Maximum seconds for the head of a request; slower clients are refused."""
HTTP_BODY_S: Final = 20.0
"""A body incomplete after this many seconds must have arrived at a rate of at least `HTTP_BODY_BYTES_PER_S` since then.
"""
HTTP_BODY_BYTES_PER_S: Final = 16 * 1024
"""Slowest accepted transfer of a request's body."""
HTTP_WHOLE_BODY_S: Final = 300.0
"""Maximum seconds for a whole body, at any rate."""
HTTP_UNREAD_S: Final = 120.0
"""A client that reads nothing of its answer for this long is disconnected."""
HTTP_CONNECTIONS: Final = 4096
"""Maximum connections of one server, if its process may open a third more files; beyond it, waiting ones are dropped.
"""
QUEUED_EXPERIMENTS: Final = 1000
"""Maximum experiments in the queue, over all submitters."""
PRODUCER_QUEUED_EXPERIMENTS: Final = 500
"""Maximum experiments in the queue from programs that submit by records."""
READ_TOKEN_CONNECTIONS: Final = 32
"""Maximum simultaneous requests of a token that may only read. `rftd token add` sets other limits for a token."""
READ_TOKEN_STREAMS: Final = 8
"""Maximum open event streams of a token that may only read."""
SUBMIT_TOKEN_SUBMISSIONS_PER_HOUR: Final = 120
"""Maximum submissions in an hour with a token that may submit."""
SUBMIT_TOKEN_QUEUED_EXPERIMENTS: Final = 50
"""Maximum waiting experiments of a token that may submit."""
SUBMIT_TOKEN_CONNECTIONS: Final = 64
"""Maximum simultaneous requests of a token that may submit."""
SUBMIT_TOKEN_STREAMS: Final = 16
"""Maximum open event streams of a token that may submit."""
ADMIN_TOKEN_SUBMISSIONS_PER_HOUR: Final = 600
"""Maximum submissions in an hour with an administrator's token."""
ADMIN_TOKEN_QUEUED_EXPERIMENTS: Final = 500
"""Maximum waiting experiments of an administrator's token."""
ADMIN_TOKEN_CONNECTIONS: Final = 128
"""Maximum simultaneous requests of an administrator's token."""
ADMIN_TOKEN_STREAMS: Final = 32
"""Maximum open event streams of an administrator's token."""
TEMPLATE_STEPS: Final = 1_000_000
"""Maximum steps of a chat template for one conversation; a thousand messages take some ten thousand."""
TEMPLATE_S: Final = 10.0
"""Maximum processor time of a chat template for one conversation."""
TASKSET_ROW_SIZE_BYTES: Final = 1 * MIB
"""Maximum size of a row of a taskset."""
REWARD_LARGEST: Final = 1e30
"""Rewards beyond this absolute value are refused: in float32, their sums and squares are infinite."""

# Work.
EVAL_CHUNK_ROWS: Final = 256
"""Held-out rows covered by one eval lease; if rows are answered several times, the number of answers."""
FAILED_GROUPS_IN_A_ROW: Final = 8
"""After this many consecutive closed groups without a member, the experiment fails with their error."""
INCOMPLETE_BATCHES_IN_A_ROW: Final = 10
"""The experiment fails after this many batches' worth of closed groups, none with enough members to be trained."""
RECENT_GROUPS: Final = 64
"""Newest closed groups of a stage used to estimate the duration of a rollout."""
TASK_REQUESTS: Final = 1_000_000
"""Maximum requests that add tasks to one experiment; each is remembered for ever, so that a repetition adds nothing."""
OPEN_REQUESTS: Final = 32_768
"""Maximum open requests of other programs in one partition remembered by a daemon; further ones stay in the log."""
DRAW_ROWS: Final = 1024
"""Maximum rows of a taskset drawn at a time."""
SELECTOR_ROWS: Final = 1_000_000
"""Maximum rows of a taskset whose selector reads columns: the daemon holds these columns in memory."""
KEPT_REWARDS: Final = 131_072
"""Minimum number of newest closed groups whose rewards are passed to a taskset's selector, once there are as many."""
DYNAMIC_TIMEOUT_LEAST_S: Final = 1.0
"""Lower bound of a time-out computed from recent durations."""
REISSUE_LEAST_S: Final = 1.0
"""Minimum duration of a rollout before it can be a straggler."""
ERROR_TEXT_CHARS: Final = 2000
"""Maximum length of an error's text in an event."""
CANCEL_GRACE_S: Final = 5.0
"""Seconds after which a cancelled workflow that has not ended is abandoned."""
ORPHANED_ROLLOUTS: Final = 8
"""After this many workflows that ignored their cancellation, their process is restarted."""
WORKER_SLOTS: Final = 16
"""Maximum explorers of one experiment: each reads the leases of its slot, a partition of `rftd.tasks`."""
RANKS: Final = 1024
"""Maximum processes of one trainer, over all its nodes."""
RANK_NODES_S: Final = 240.0
"""Maximum seconds that a trainer waits for its other nodes, on each of which Ray starts a process."""
CALL_TIMEOUT_S: Final = 10_000_000.0
"""Maximum configurable seconds for one call of the ranks: some months."""
RANK_CALL_TIMEOUT_S: Final = 1800.0
"""Default maximum seconds for one call of the ranks."""
HEARTBEAT_INTERVAL_S: Final = 1.0
"""Time between two heartbeats of a worker."""
WORKER_LOST_AFTER_S: Final = 15.0
"""Silence after which a worker counts as lost."""
WORKER_START_TIMEOUT_S: Final = 300.0
"""A worker process that has not joined after this long is killed and restarted; large models load slowly."""
RESTART_BACKOFF_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Pauses before the first, second and later restarts of a worker."""
RESTARTS_IN_A_ROW: Final = 8
"""Consecutive restarts of one worker without progress before the experiment pauses."""
STALLED_BACKOFF_S: Final = (10.0, 20.0, 40.0, 60.0)
"""Delays before further restarts of a worker after `RESTARTS_IN_A_ROW`: the missing dependency may return by itself."""
LEFTOVER_GRACE_S: Final = 2.0
"""Processes left running by a worker are asked to end, and killed after this long; the worker's successor waits for
that.
"""
CONDEMNED_S: Final = 30.0
"""An explorer that rejects what the others of its experiment accept is restarted after this long."""
RELEASE_AFTER_S: Final = 30.0
"""Seconds after the start of a pause that only a person can end until the experiment's workers and its slot are
released.
"""
PAUSE_BACKOFF_S: Final = (1.0, 5.0, 15.0, 60.0, 300.0)
"""Delays between retries of a paused experiment, if only a retry shows whether its cause is gone."""
LOSSES_BEFORE_ALONE: Final = 2
"""Workers lost with a group among others before the group is leased alone."""
LOSSES_ALONE: Final = 3
"""Workers lost with a group leased alone before its task has failed, if `max_retry_times` allows as many."""
PIPELINE_ATTEMPTS: Final = 4
"""Leases of a finished group for its stage's experience pipeline, all but the first alone, before the group fails."""
SANDBOX_TAIL_SIZE_BYTES: Final = 64 * 1024
"""Bytes kept of the end of each output of a sandboxed command."""
SANDBOX_ERROR_CHARS: Final = 1000
"""Maximum characters of a command's standard error in the reason of a failed rollout."""
SANDBOX_FILE_SIZE_BYTES: Final = 4 * MIB
"""Largest file read from a sandboxed command."""
SANDBOX_TASK_SIZE_BYTES: Final = 64 * MIB
"""Maximum bytes of the files of one task, and of the folder copied for each rollout."""
ENDPOINT_CALLS: Final = 1000
"""Maximum answers requested by one rollout from its endpoint."""
ENDPOINT_CONCURRENT_CALLS: Final = 64
"""Maximum answers sampled for one rollout's endpoint at a time; further clients are told to retry."""
ENDPOINT_TOKENS: Final = 1_000_000
"""Maximum tokens sampled by one rollout over its endpoint."""
ENDPOINT_BODY_SIZE_BYTES: Final = 4 * MIB
"""The largest request of an agent program. Up to sixteen times as much is read and discarded."""
ENDPOINT_KEEP_ALIVE_S: Final = 75
"""Seconds for which a rollout's endpoint keeps an idle connection: longer than clients do, so that none is closed while
being reused.
"""
ENDPOINT_BODY_S: Final = 60.0
"""Maximum seconds for the body of a call of the endpoint to arrive."""
ENDPOINT_KEPT_SIZE_BYTES: Final = 32 * MIB
"""Bodies of answered calls cached by a rollout, so that a repeated request gets the same answer. The oldest are dropped
first.
"""
SERVED_CALLS: Final = 1024
"""Maximum answers requested from a serving explorer by clients at a time, most of them waiting; further clients are
told to retry.
"""
SERVED_ANSWERS: Final = 100_000
"""Answers without feedback kept by a serving experiment; older ones can no longer receive feedback."""
SERVED_RUNS: Final = 100_000
"""Maximum runs with feedback waiting to be committed."""
SERVED_ROWS: Final = 10_000
"""Committed groups whose tokens are kept behind the newest leased one; earlier ones are in the log."""
EXTRACTED_CHARS: Final = 1000
"""Maximum characters of the answer that a reward has read from a response; the excess is cut off."""
AUXILIARY_TURNS: Final = 64
"""Maximum answers of auxiliary models in a rollout's record; later ones are left out."""
AUXILIARY_TEXT_CHARS: Final = 32_768
"""Maximum characters of the answers of auxiliary models in a rollout's record together; the excess is cut off."""
EVAL_AUXILIARY_CHARS: Final = 262_144
"""Maximum characters of the answers of auxiliary models in the scores of one range of held-out rows together; the
excess is cut off.
"""
EVAL_ANSWERS: Final = 4096
"""Maximum answers of one evaluation stored as text; of more, a sample with the best and the worst."""
EVAL_ANSWERS_CHARS: Final = 16 * MIB
"""Maximum characters of the texts of one range of held-out rows together; the excess is cut evenly."""
EVAL_ANSWER_CHARS: Final = 131_072
"""Maximum characters of one text of an evaluation's answer."""
TOKENIZER_SIZE_BYTES: Final = 256 * MIB
"""The largest tokenizer.json copied to an experiment's artifacts, and opened for its texts."""
TEXT_S: Final = 20.0
"""Maximum seconds for opening a tokenizer and decoding one request; a slower process is killed."""
TEXT_REFUSAL_S: Final = 60.0
"""After a tokenizer ended its process, requests are refused for this long without opening it again."""
TEXT_TOKENIZERS: Final = 4
"""Tokenizers kept open for texts, in one process."""
TEXT_MEMORY_SIZE_BYTES: Final = 4096 * MIB
"""Address space of the process for texts: the largest tokenizers in use need a quarter of it."""
TEXT_CHARS: Final = 200_000
"""Default maximum characters of one text in an answer; longer ones are cut, with their length beside."""
TRIAL_ROWS_S: Final = 60.0
"""Maximum seconds for reading the first rows of a file to be submitted; a slower process is killed."""
TRIAL_ROLLOUT_S: Final = 300.0
"""Maximum seconds for a tried rollout, the opening of the model included; a slower process is killed."""
TRIAL_MEMORY_SIZE_BYTES: Final = 8192 * MIB
"""Memory of the process reading first rows: a tokenizer of transformers imports torch."""
TRIAL_SIZE_BYTES: Final = 16 * MIB
"""Maximum size of the answer of a trial."""
TRIAL_CHARS: Final = 20_000
"""Maximum characters of a prompt or an answer of a trial; the excess is cut off."""
TRIAL_ROW_CHARS: Final = 4000
"""Maximum characters of a row of a trial; the excess is cut off."""
TRIAL_CALLS: Final = 50
"""Maximum number of calls of the model shown of a tried rollout."""
TRIAL_IDS: Final = 4000
"""Maximum number of token ids shown of a call."""
WORDS_SLICE_S: Final = 1.0
"""Maximum seconds of indexing by one request for words."""
WORDS_OPEN_INDICES: Final = 8
"""Word indices kept open at a time."""
STEP_TERMS_FILES: Final = 64
"""Maximum number of files with a step's terms of the objective at each token; the oldest ones are removed."""
STEP_TERMS_SIZE_BYTES: Final = 1024 * MIB
"""Maximum size of the file with the terms of one step, in bytes."""
TEXT_TASKSETS: Final = 8
"""Tasksets kept open for the rows of texts."""
SERVICE_ANSWER_SIZE_BYTES: Final = 4 * MIB
"""The largest answer of a service used as an auxiliary model."""
DRAIN_TIMEOUT_S: Final = 10.0
"""Time for a worker to finish its work before it is ended."""
KILL_TIMEOUT_S: Final = 5.0
"""A killed process that has not ended after this long hangs in the operating system; it is reported and left alone."""
PLAN_AHEAD_BATCHES: Final = 2
"""Batches planned and not yet trained; one trains while the next waits."""
PLAN_AHEAD_MOST_BATCHES: Final = 32
"""Upper bound of batches planned and not yet trained under a wide staleness bound: an eighth of that bound, at most
this.
"""
ROOM_AHEAD_VERSIONS: Final = 8
"""Default number of versions ahead of the trainer for which buffers and kept weights have room."""
SNAPSHOT_RECORDS: Final = 20_000
"""A fold is written to a file after this many records, and with each checkpoint."""
SNAPSHOT_INTERVAL_S: Final = 2.0
"""Minimum seconds between two snapshots."""
REUSED_RECORDS_SIZE_BYTES: Final = 128 * MIB
"""Records of reusable experiences cached by the trainer; older ones are read from the log again."""
EVAL_ROWS_IN_PROGRESS: Final = 64
"""Maximum evaluation rows in progress on a separate evaluation engine."""
KEPT_WEIGHT_VERSIONS: Final = 4
"""Minimum number of newest published versions whose files are kept, more with a wide window of synchronization; older
ones are retired once nothing pins them.
"""
WEIGHTS_TRANSFER_S: Final = 60.0
"""Maximum seconds for one part of a transfer between devices; a peer that hangs for longer is given up."""

DISK_RESERVE_SIZE_BYTES: Final = 1024 * MIB
"""Space kept free on each volume that the daemon writes to, or 5 % of the volume if less."""

# State database.
READER_CACHE_KIB: Final = 512
"""Page cache of each connection that reads tables in a SQLite file: there may be many, and all of them fill up."""
WRITER_CACHE_KIB: Final = 16 * 1024
"""Page cache of the connection that follows the log, for tables in a SQLite file."""
BULK_CACHE_KIB: Final = 64 * 1024
"""Page cache of a connection that fills tables from the log's first records; freed afterwards."""
REBUILD_RECORDS: Final = 8 * FETCH_RECORDS
"""Records of one transaction of a rebuild: keys are random, so a page changed by many rows is written once."""
STATE_WAL_SIZE_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of the tables' write-ahead file in SQLite; a larger one is truncated."""
DATABASE_POOL_CONNECTIONS: Final = 8
"""Maximum connections of one process to Postgres, including the projector's."""
DATABASE_POOL_WAIT_S: Final = 10.0
"""Maximum seconds that a reader waits for a free connection to Postgres."""
SQLITE_POOL_CONNECTIONS: Final = 15
"""Maximum connections of one process to tables in a SQLite file, each on a thread of its own."""
SQLITE_POOL_WAIT_S: Final = 30.0
"""Maximum seconds that a reader waits for a free connection to tables in a SQLite file: longer than for Postgres, as
earlier reads are slow on a busy machine, but none hangs.
"""
DATABASE_IDLE_S: Final = 30.0
"""Connections unused for this long are closed."""
DATABASE_CONNECT_TIMEOUT_S: Final = 5.0
"""Maximum seconds for connecting to the database."""
DATABASE_STATEMENT_TIMEOUT_S: Final = 30.0
"""Maximum seconds of one statement in the database."""
DATABASE_LOCK_TIMEOUT_S: Final = 10.0
"""Maximum seconds of a wait for a lock in the database: shorter than for a statement, so that a projector blocked by
another one's lock gets a lock error, not a time-out.
"""
PROJECTOR_RIVAL_S: Final = 5.0
"""Maximum seconds that a projector waits for the previous one to release the database."""
STATE_CHARS: Final = 256
"""Maximum length of the text identifying the state in which a step of a rollout began: a hash, not the state itself."""
DAEMON_LOG_SIZE_BYTES: Final = 16 * MIB
"""Maximum size of the daemon's own log file; the previous file is kept, too."""
WORKER_LOG_SIZE_BYTES: Final = 64 * MIB
"""Size at which a worker's log file is rotated: a workflow may print anything."""
WORKER_LOG_KEPT_BYTES: Final = 16 * MIB
"""Size of the end of a full worker log kept at rotation, in the file beside it."""
