"""The composition root: the only package that knows all others. In reading order:

cli/      the command line: verbs, the options that they share, and what they print
serve/    one daemon, composed: its folder, its log, its port, its services
run/      which experiment runs, its life, and what it waits for
config/   the experiment file
trust/    who may do what
http/     the reads and commands of a daemon, over HTTP and from the other side of it
observe/  metrics, and the checks of `rftd doctor`
demo/     `rftd demo`
stack/    a real Kafka and a real Postgres on this machine
__main__  `python -m rftd.daemon`
"""
