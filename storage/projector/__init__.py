"""The projector: records of the log as rows of the tables. In reading order:

upserts         the columns that an event type owns, and the statement that writes them
projections/    pure functions from events to row changes
fold            records to row changes, positions and dead letters; pure
standing_plans  which plans count
writer          rows and positions into one transaction
projector       follows the log
sole_writer     its transactions, and the lock that keeps a second one out
rebuild         folds again from nothing and compares, by canonical digests of the tables
"""
