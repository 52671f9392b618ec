"""Experiments under way, from their submission to their end. In reading order:

registry     every experiment in the log, by state, folded from the spines
dlq/         records and tasks that were set aside, and the verdicts on them
operations   the commands that the API may give
why/         what each role waits for, and what would unblock it
supervisor/  which experiment runs, and its life
requests/    the same by records in the log, from anywhere
"""
