"""The database of the tables. In reading order:

tables/           the tables, one file for each noun
table_statistics  statistics for the query planner of Postgres
visit             work on a SQLite connection in a single visit to its thread
engine            SQLite by default, Postgres by a URL
connection_pool   bounded pool of connections to the tables; closes idle connections
postgres          connections to Postgres: time-outs, and errors with a fix
schema            creation, upgrade and refill of the tables
migrations/       the revisions of the tables, for both databases
"""
