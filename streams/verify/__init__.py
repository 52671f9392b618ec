"""The offline checker: holds a log against the rules, with no state but the log.

report     findings, and what was counted
evidence   what one experiment's events say, collected from every partition
rules      the checks on that evidence, one function for each promise
heads      what fences and checkpoints remember of the log
checker    reads a log and applies them
"""
