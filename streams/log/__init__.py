"""The log: its records, its contract, and what all backends share. In reading order:

topics          the streams: names, partitions, retention
writers         the names under which processes write
envelope        a record's attributes; `Draft` before, `Record` after the log took it
bounds          what a number in an event or a specification may be
marked          a fact beside a field: its annotation carries a mark
log_place       which fields are places in the log
stored_path     which fields are paths, and which of them an experiment reads
arrays          numeric arrays as bytes
codec           events to bytes and back, with limits
newest          the newest entries of what only grows
chain           the hash chain, heads that are remembered
log             `EventLog`, the contract of every backend
requests        what other programs ask for by records in the topic of requests
deadletters     records that are not ours
fencing         epochs of roles in a partition
effective       from a record to the event that a fold takes in: what every reader leaves out
start           where an experiment begins in the log
group_id        the id of a group, which says its place
shared_history  what a fork shares with its parent
spine_digest    a digest of the spine that steps and checkpoints carry
announcement    a digest of the newest announcement of weights, which steps carry
feed            hands out what is read; nothing is passed before it was taken
follower        reads partitions into a fold
role            a leased role: fenced, its appends read back
patience        appends that wait for space
decision        an event that was decided, and the partition that it goes to
losses          what survivors remember that the log does not hold any more
retention       heartbeats are forgotten after a while
payloads        the token arrays of experiences: dropped, brought back, their space returned
backend         `LogUrl`, where a log lies, and `LogBackend`, what tells the kinds of logs apart; the table of them
admission       what an append must satisfy before anything is written, and the room that it waits for
tail            heads, a small ring of the newest records, and the subscriptions that all backends share
"""
