"""`rftd doctor`: are this machine, its daemon and an experiment fit to work? In reading order:

machine      python, packages, clock, limits
folder       the data folder, its disk, artifacts, the log's socket
access       what other users of the machine could read or replace
engines      devices, which engines can run on them, and which see them
cluster      the log and the database that lie elsewhere
daemon       the port, the daemon that should be there, its token, its metrics, what it keeps
experiment   an experiment file: fields, model, tokenizer
prompts      its tasks and rows: columns, chat template, lengths
checkpoints  the place of its files, and the space there
"""
