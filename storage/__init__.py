"""Tables rebuildable from the log, and large files beside the log. In reading order:

database/   SQLite or Postgres: connections, tables, their one migration projector/  follows the log, and writes rows
queries/    reads for the CLI, the API and the page lineage/    the origin of an experience, a step or weights, and
their fate files/      artifacts, checkpoints, snapshots, and everything else in folders portable/   one whole
experiment in a file: export from a log, import into a log, and archiving of its files
"""
