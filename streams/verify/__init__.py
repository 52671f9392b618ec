"""The offline checker: it compares a log with the rules, with no state but the log, in bounded memory.

report         findings and counts
scratch        tables and lists of records' data, on disk where they grow
facts          rows for experiences, groups and steps
evidence       the counters and open questions of one experiment during the reading
identities     duplicate ids in the log
heads          heads remembered by fences and checkpoints
holders        owners of roles, and records impossible for any of them
answers        leases, and the writers of answers to them
rollouts       experiences and evaluations, as they are read
tasks          leases and groups
spine          plans, steps, generations, retirements
announcements  weights, checkpoints, workers
books          the fate of every experience
rules          promises judged only at the end
forks          the beginning of a fork
marks          digests of the spine carried by steps
outside        files outside of the log named by events
verdicts       decisions about dead letters
reading        partitions read past damage, records read again
checker        one check of one log, applying all of these
"""
