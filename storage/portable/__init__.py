"""A portable file: one experiment, whole. In reading order:

files       which files of an experiment go along, and where they go here
digest      one experiment's tables, comparable between logs
experiment  an experiment into a file, and out of one: `rftd export` and `rftd import`
archive     its files into such a file, back to their place, or away: `rftd archive`, `restore` and `rm`
"""
