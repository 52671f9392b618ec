"""Dead letters: records and tasks that were set aside, and the verdicts on them. In reading order:

letter    one dead letter, the answers that hold some, and which of them somebody means
desk      reads them, with a daemon or without one, counts those that are open, and writes verdicts
verdicts  retry and drop: what may be done with which
"""
