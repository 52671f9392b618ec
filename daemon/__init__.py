"""The composition root: the only package importing all others. In reading order:

cli/      the command line: verbs, shared options, and output
serve/    one daemon, composed: its folder, its log, its port, its services
run/      which experiment runs, its life, and its waits
config/   the experiment file
trust/    who may do what
text/     rollouts as text: decoding, rows, words
http/     the reads and commands of a daemon over HTTP: server and client
observe/  metrics, and the checks of `rftd doctor`
demo/     `rftd demo`
stack/    a real Kafka and a real Postgres on this machine
__main__  `python -m rftd.daemon`
"""
