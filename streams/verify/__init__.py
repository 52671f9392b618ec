"""The offline checker: holds a log against the rules, with no state but the log, in bounded memory.

report         findings, and what was counted
scratch        tables and lists of what was read, on disk where they grow
facts          what is remembered of experiences, groups and steps
evidence       what is known of one experiment while it is read
identities     ids that are in the log twice
heads          what fences and checkpoints remember of the log
rollouts       experiences and evaluations, as they are read
tasks          leases and groups
spine          plans, steps, generations, retirements
announcements  weights, checkpoints, workers
books          what became of every experience
rules          what can be judged at the end alone
forks          where a fork begins
marks          what steps say of the spine that was read
outside        what events name outside of the log
verdicts       what was decided about dead letters
reading        partitions, past what is damaged
checker        reads a log and applies them
"""
