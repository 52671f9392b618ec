"""The Kafka backend of `EventLog`. In reading order:

settings      where the cluster is and how to log in: `host:port` text or a kafka:// URL, without a secret
connect       aiokafka's arguments, its errors as ours with their fixes, its log lines as a few of ours
topics        makes the topics from the one table of streams, and compares them with it
rights        the rights that each role needs, and those that a user has
partitions    partitions of streams as Kafka names them; their first and next offsets
records       the envelope in headers, repeated records recognised
gaps          the records that are missing, told from the offsets that transactions' markers took
producers     drafts on their way, a batch in the making, the idempotent producer, replaced after an unknown outcome
lane          appends to one partition: one batch in flight, settled after an unknown outcome
fetcher       reads onwards from any position
direct        reads of a few records anywhere
tailing       one consumer feeds the ring of newest records for all followers, who hold it back if they are slow
subscription  the shared subscription, on followed partitions
log           `KafkaLog`, composed of the above
backend       `KafkaBackend`: kafka:// URLs, and what `rftd doctor` finds on a cluster
"""
