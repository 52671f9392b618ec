"""Backends of `EventLog`. In reading order:

admission       what an append must satisfy before anything is written
remembered      remembered heads against a log
tail            heads, followers and a small ring of the newest records
subscription    the reader that all backends share
memory          a deterministic log in memory, with injected faults: the public testing API
room            a bounded queue's free room
breather        turns for the log's threads while the event loop is saturated
sqlite_schema   tables, pragmas and statements of the embedded log
sqlite_values   how a value lies in its row: as it is, compressed, or without its payload
sqlite_table    one partition's rows: read and checked
sqlite_errors   SQLite's errors as ours
sqlite_ids      which id lies where: the newest in memory, the others in a table
sqlite_store    the one connection that writes: group commit, idempotency, hash chain
checkpointer    moves the write-ahead log into the database beside the writer
wal             when the write-ahead log is emptied, what is in the way, and who
sqlite_writer   the one thread that owns the store, and its bounded queue
sqlite_reader   reads on threads of their own
sqlite_check    start-up verification and the offline scan of the hash chain
sqlite_index    the index of ids against the records, offline
lock_file       one daemon per folder, on a local disk
heads_file      the heads that the log itself remembers, outside its database
sqlite          `SqliteLog`, the embedded default, composed of the above
sqlite_view     `SqliteView`, the same file read-only, for tools
kafka           `KafkaLog`, on a Kafka cluster that many processes share
"""
