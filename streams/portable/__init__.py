"""One experiment's log in a file, and from a file into any log. In reading order:

format      the manifest, and records as bytes, one after the other
container   the file: an uncompressed zip, written and read as streams, every member checked
own         the records of one experiment as a log of their own, out of a log or out of a file
export      a log's records of one experiment into a file
positions   which fields of which events are places in the log, how they are rewritten, old places to new ones
folders     absolute paths in events, moved to another folder
source      the records of a file, read and checked one by one
present     what a log already holds of the experiment, compared with the file
load        a file's records into a log
"""
