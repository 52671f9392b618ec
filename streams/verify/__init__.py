"""The offline checker: it holds a log against the rules, with no state but the log, in bounded memory.

report         findings and counts
scratch        tables and lists of what was read, on disk where they grow
facts          rows for experiences, groups and steps
evidence       the counters and open questions of one experiment while it is read
identities     ids that are in the log twice
heads          heads that fences and checkpoints remember
holders        owners of roles, and records that none of them can have written
answers        leases, and who wrote the answers to them
rollouts       experiences and evaluations, as they are read
tasks          leases and groups
spine          plans, steps, generations, retirements
announcements  weights, checkpoints, workers
books          the fate of every experience
rules          promises that can be judged at the end alone
forks          the beginning of a fork
marks          digests of the spine that steps carry
outside        files that events name outside of the log
verdicts       decisions about dead letters
reading        partitions read past damage, records read again
checker        one check of one log, which applies all of them
"""
