"""A portable file of a whole experiment. In reading order:

files       the exported files of an experiment, and their locations on this machine
experiment  an experiment into a file, and out of one, with equal tables: `rftd export` and `rftd import`
archive     an experiment's files archived, back in the job's folder, or removed: `rftd archive`, `restore` and `rm`
"""
