"""The Kafka backend of `EventLog`. In reading order:

settings      address and login of a cluster: `host:port` text or a kafka:// URL, without a secret
connect       arguments for aiokafka, translation of its errors with their fixes, a limit on its log lines
topics        creation of the topics from the one table of streams, and comparison with the table
rights        the rights needed by each role, and the rights of a user
partitions    Kafka's names of the streams' partitions; their first and next offsets
records       the envelope in headers; recognition of repeated records
gaps          missing records, distinguished from offsets taken by markers of transactions
producers     queued drafts, a batch in the making, the idempotent producer, replaced after an unknown outcome
lane          appends to one partition: one batch in flight, settled after an unknown outcome
fetcher       sequential reads from any position
direct        reads of a few records anywhere
tailing       one consumer feeding the ring of newest records for all followers, with back-pressure from slow ones
subscription  the shared subscription, on followed partitions
log           `KafkaLog`, composed of the above
backend       `KafkaBackend`: kafka:// URLs, and the checks of `rftd doctor` on a cluster
"""
