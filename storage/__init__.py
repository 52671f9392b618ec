"""The tables, which can be rebuilt from the log, and the large bytes that cannot. In reading order:

database/   SQLite or Postgres: connections, tables, their one migration
projector/  follows the log, and writes rows
queries/    what the CLI, the API and the page read
lineage/    the origin of a thing, and its fate
files/      artifacts, checkpoints, snapshots, and whatever else lies in folders
portable/   one experiment, whole, in a file: out of a log, into a log, and its files away
"""
