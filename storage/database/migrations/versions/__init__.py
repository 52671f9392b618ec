"""One file for each revision, in order; a released revision is never changed.

r0001_tables the tables of the first release
"""
