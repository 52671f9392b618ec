"""The embedded backend of `EventLog`: one file, written by one process. In reading order:

schema      tables, pragmas, statements and connections
rows        one partition's rows, read and checked; values stored unchanged, compressed, or without their payload
errors      translation of SQLite's errors
ids         the index of ids: the newest in memory, the older ones in a table
store       the one writing connection: group commit, idempotency, hash chain
wal         when to empty the write-ahead log, and the processes blocking that
writer      the one thread owning the store, and its bounded queue
reader      reads on a pool of threads
heads_file  the heads remembered by the log itself, outside its database
check       start-up verification, and the offline scans of the hash chain and of the index of ids
lock_file   the lock limiting a data folder to one daemon
gil_yield   short pauses of a saturated event loop, so that the log's threads run
log         `SqliteLog`, composed of the above
view        `SqliteView`, the same file read-only, for tools
socket/     the same log for other processes of this machine, over a Unix socket
"""
