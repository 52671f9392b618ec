"""Backends of `EventLog`. In reading order:

backend     `LogUrl`, where a log lies, and `LogBackend`, what tells the kinds of logs apart; the table of them
admission   what an append must satisfy before anything is written, and the room that it waits for
tail        heads, a small ring of the newest records, and the subscriptions that all backends share
memory      a deterministic log in memory, with injected faults: the public testing API
gil_yield   turns for the log's threads while the event loop is saturated
lock_file   one daemon per folder, on a local disk
sqlite/     `SqliteLog`, the embedded default, in one file
kafka/      `KafkaLog`, on a Kafka cluster that many processes share
"""
