"""One file for each revision, in their order; a released one is never changed.

r0001_tables   the tables of the first release with migrations
r0002_forks    where an experiment comes from, and where its files are
r0003_lineage  which weights drew which tokens, and indexes for what came of them
r0004_leases   the leases of a worker, in order
r0005_priority whose turn comes first
r0006_uses     uses, rests, and tags that were changed
r0007_overdue  windows whose weights were overdue
r0008_retirements retirements without an index that nothing used
r0009_appended experiences in the order of their writing
r0010_signal   since which step nothing is learnt, and why
"""
