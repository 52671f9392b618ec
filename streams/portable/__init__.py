"""One experiment's log in a file, and from a file into any log. In reading order:

format      the manifest, and records as bytes, one after the other
container   the file: an uncompressed zip, written and read as streams, every member checked
experiment_records  the records of one experiment as a separate log, out of a log or out of a file
export      a log's records of one experiment into a file
positions   the events' fields with positions in the log, and the mapping of old positions to new ones
folders     absolute paths in events, moved to another folder
source      the records of a file, read and checked one by one
present     the part of the file already in a log, compared record by record
load        a file's records into a log
"""
