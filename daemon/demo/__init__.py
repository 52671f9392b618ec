"""`rftd demo`: a tiny model learns to add, through the log, in about a minute. In reading order:

sums              the task: datasets, with sums held out
experiment.yaml   an ordinary experiment file; examples/demo.yaml is the same
host              a daemon of its own, restarted if it dies
progress          where it stands, in one line that fits the terminal
outcome           what came out, read from the API; the last page, and the curve as a picture
demo              all of it, in order, with what is shown meanwhile; on a Kafka and a Postgres of its own, if wanted
"""
