"""`rftd doctor`: whether this machine, its daemon and an experiment are ready for work. In reading order:

machine      python, packages, clock, limits
folder       the data folder, the disk, artifacts, the log's socket
access       files readable or replaceable by other users of the machine
engines      devices, and the engines able to run on each device and to see it
sandboxes    isolations of commands, tools and others' functions
abilities    engines and sandboxes, for the API of a daemon
cluster      a log and a database on servers
daemon       the port, the expected daemon, token, metrics, keeping rules
experiment   an experiment file: fields, model, tokenizer
prompts      tasks and rows: columns, chat template, lengths
checkpoints  the experiment's folder, and the space for checkpoints
"""
