"""Tables rebuildable from the log, and large files beside the log. In reading order:

database/   SQLite or Postgres: connections, tables, the migration
projector/  follows the log, and writes rows
queries/    reads for the CLI, the API and the page
lineage/    origin and fate of an experience, a step or weights
files/      artifacts, checkpoints, snapshots, and everything else in folders
portable/   a whole experiment in a file: export from a log, import into a log, and archiving of files
"""
