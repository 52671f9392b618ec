"""Dead letters: records and tasks set aside, and the verdicts on them. In reading order:

letter              one dead letter, the API's answers about dead letters, and the lookup by id or task
dead_letter_service reads letters with or without a daemon, counts open ones, and writes verdicts
verdicts            retry and drop: the rules for each kind of letter
"""
