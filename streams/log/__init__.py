"""The log: records, contract, and the code shared by all backends. In reading order:

topics          the streams: names, partitions, retention
writers         the source names of writing processes
envelope        a record's attributes; `Draft` before the append, `Record` after
bounds          the valid ranges of numbers in events and specifications
marked          marks beside fields, and their two kinds: positions in the log, paths
arrays          numeric arrays as bytes
codec           events to bytes and back, with limits
newest          a mapping bounded to the newest keys
chain           the hash chain and remembered heads
log             `EventLog`, the contract of every backend
requests        requests of other programs, written as records of the topic of requests
deadletters     records with no effect: foreign, misplaced or unreadable
role            a leased role: acquired by a fence, appends read back, FencedError for a replaced owner
fencing         epochs of roles in a partition: the records of a replaced owner have no effect
effective       from a record to the event folded by every reader
start           the beginning of an experiment in the log
group_id        the id of a group, with stage and sequence in its digits
shared_history  the history shared by a fork and its parent
spine_digest    a digest of the spine, carried by steps and checkpoints
announcement    a digest of the newest announcement of weights, carried by steps
feed            delivery of records; a record counts as read once its handler returned
follower        reads partitions into a fold
append_retry    appends waiting for space
decision        a decided event and its partition
lost_records    remembered heads missing from the log
retention       truncation of old heartbeats
payloads        the token arrays of experiences: dropped, restored, their space returned
backend         `LogUrl`, the address of a log, and `LogBackend`, the interface of a kind of log; the table of kinds
admission       the checks of an append before any write, and the bounded queue
tail            heads, a small ring of the newest records, and the subscriptions shared by all backends

A new kind of log: an `EventLog` and a `LogBackend` in a folder beside this one, and one line in `backend` (or an entry
point of a package), without a change in daemon/; tests/contract/test_event_log.py is its test.
"""
