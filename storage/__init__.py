"""What can be rebuilt from the log, and the large bytes that cannot. In reading order:

tables/       the tables, one file for each noun
upserts       which columns an event type owns, and the statement that writes them
projections/  pure functions from events to row changes
fold          records to row changes, positions and dead letters; pure
writer        rows and positions into one transaction
projector     follows the log
database      SQLite by default, Postgres by a URL; a schema hash instead of migrations
digest        canonical digests of the tables
rebuild       folds again from nothing and compares
names         an experiment by its name, id or prefix
queries/      what the CLI, the API and the page read
artifacts     files by their sha256
checkpoints   folders of checkpoints, registered in place
"""
