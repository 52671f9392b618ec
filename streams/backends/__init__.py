"""Backends of `EventLog`. In reading order:

admission       what an append must satisfy before anything is written
remembered      remembered heads against a log
tail            heads, followers and a small ring of the newest records
subscription    the reader that all backends share
memory          a deterministic log in memory, with injected faults: the public testing API
room            a bounded queue's free room
breather        turns for the log's threads while the event loop is saturated
sqlite_schema   tables, pragmas and statements of the embedded log
sqlite_table    one partition's rows: read and checked
sqlite_errors   SQLite's errors as ours
sqlite_ids      which id lies where: the newest in memory, the others in a table
sqlite_store    the one connection that writes: group commit, idempotency, hash chain
checkpointer    moves the write-ahead log into the database beside the writer
sqlite_writer   the one thread that owns the store, and its bounded queue
sqlite_reader   reads on threads of their own
sqlite_check    start-up verification and the offline scan of the hash chain
lock_file       one daemon per folder, on a local disk
heads_file      the heads that the log itself remembers, outside its database
sqlite          `SqliteLog`, the embedded default, composed of the above
sqlite_view     `SqliteView`, the same file read-only, for tools
kafka           `KafkaLog`, on a Kafka cluster that many processes share
"""
