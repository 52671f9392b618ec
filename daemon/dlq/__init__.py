"""Dead letters: what was set aside, and what somebody decided about it. In reading order:

letter     one dead letter, and the answers that hold some
gathering  pointers, verdicts and failed tasks, as letters; which of them somebody means
page       one letter with the record or the attempts behind it
verdicts   retry and drop: what may be done with which
desk       reads them and writes verdicts
offline    the same from a log without a daemon
gauge      how many are open, for the metrics
"""
