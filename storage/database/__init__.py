"""The database of the tables. In reading order:

tables/           the tables, one file for each noun
table_statistics  what Postgres plans queries from
visit             work on a connection to a SQLite file, all at once
engine            SQLite by default, Postgres by a URL
connection_pool   connections to the tables, bounded; idle ones are closed
postgres          connections to Postgres: bounds, errors that say what to do
schema            tables made, upgraded, filled anew
migrations/       the revisions of the tables, for both databases
"""
