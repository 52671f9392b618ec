"""The projector: records of the log as rows of the tables. In reading order:

upserts            the columns owned by an event type, and the statement that writes them
projections/       pure functions from events to row changes
fold               records to row changes, positions and dead letters; pure
standing_plans     which plans count
counts_update      changes of the counts of experiments and stages
experience_states  the state of each experience
writer             rows and positions into one transaction
projector          follows the log
sole_writer        the projector's transactions, and the lock that excludes a second projector
rebuild            folds again from the first record and compares, by canonical digests of the tables
"""
