"""One file for each revision, in their order; a released one is never changed.

r0001_tables the tables of the first release
"""
