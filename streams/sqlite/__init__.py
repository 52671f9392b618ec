"""The embedded backend of `EventLog`: one file, written by one process. In reading order:

schema      tables, pragmas, statements and connections
rows        one partition's rows, read and checked; a value is stored as it is, compressed, or without its payload
errors      SQLite's errors as ours
ids         which id lies where: the newest in memory, the others in a table
store       the one connection that writes: group commit, idempotency, hash chain
wal         when the write-ahead log is emptied, what is in the way, and who
writer      the one thread that owns the store, and its bounded queue
reader      reads on threads of their own
heads_file  the heads that the log itself remembers, outside its database
check       start-up verification, and the offline scans of the hash chain and of the index of ids
log         `SqliteLog`, composed of the above
view        `SqliteView`, the same file read-only, for tools
"""
