"""The Kafka backend of `EventLog`. In reading order:

settings      where the cluster is and how to log in: `host:port` text or a kafka:// URL, without a secret
connect       aiokafka's arguments, and its errors as ours with their fixes
quiet         aiokafka's log lines as a few of ours
topics        makes the topics from the one table of streams, and compares them with it
names         partitions of streams as Kafka names them
headers       the envelope: CloudEvents attributes, the exact head, the digest
seen          identities of recent records
reading       messages as records; where repeated ones lie
offsets       first and next offsets, over a connection of its own
missing       whether records were deleted
producers     the idempotent producer, replaced after an unknown outcome
pending       the drafts of one append on their way
filling       a batch in the making
lane          appends to one partition: one batch in flight, settled after an unknown outcome
fetcher       reads onwards from any position
direct        reads of a few records anywhere
pressure      back-pressure of followers on the tail, and their lag
tailing       one consumer that feeds the ring of newest records for all followers
subscription  the shared subscription, on followed partitions
log           `KafkaLog`, composed of the above
"""
