"""Experiments under way, from submission to end. In reading order:

registry     every experiment in the log, by state, folded from the spines
dlq/         dead letters (records and tasks set aside), and the verdicts on them
consequence  the answer to a command's dry run
recomputation  the state of a step's terms, recomputed by a replay
operations   the commands of the API
why/         each role's waits, and the event that ends each wait
supervisor/  which experiment runs, and its life
requests/    the same commands as records in the log, from any program
"""
