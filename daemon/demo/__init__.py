"""`rftd demo`: a tiny model learns to add, through the log, in about a minute. In reading order:

sums              the task: datasets, with sums held out
experiment.yaml   an ordinary experiment file, identical to examples/demo.yaml
progress          the current state, in one line fitting the terminal
outcome           the figures, read from the API; the last page, and the curve as a picture
demo              the whole demo in order, with progress output; optionally on a private Kafka and Postgres
recording         a recorded short run, served without workers
"""
