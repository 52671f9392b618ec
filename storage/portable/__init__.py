"""A portable file: one experiment, whole. In reading order:

files       the files of an experiment that go along, and their places here
experiment  an experiment into a file, and out of one, with the same tables: `rftd export` and `rftd import`
archive     its files into such a file, back to their place, or away: `rftd archive`, `restore` and `rm`
"""
