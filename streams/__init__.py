"""The log and its language. In reading order:

log/       the contract of every backend, and the parts shared by all: envelopes, codec, chain, roles, followers
spec/      the resolved experiment: the specification and its sections
events/    the event types
figures/   figures of steps and evaluations, with their uncertainty
folds/     pure state: the spine, groups, the replay buffer of experiences, weights
memory     a deterministic log in memory with injected faults: the public testing API
sqlite/    `SqliteLog`, the embedded default in one file, and its socket for other processes
kafka/     `KafkaLog`, on a Kafka cluster shared by many processes
portable/  one experiment's log in a file, and from a file into any log
verify/    the offline checker of the rules over any log
"""
