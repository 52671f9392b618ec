"""One experiment's log in a file, and from a file into any log. In reading order:

manifest    what the file says about itself
frames      records as bytes, one after the other
container   the file: an uncompressed zip, written and read as streams, every member checked
own         the records of one experiment, out of a log
export      a log's records of one experiment into a file
positions   which fields of which events are places in the log, and how they are rewritten
places      old places to new ones
folders     absolute paths in events, moved to another folder
source      the records of a file, read and checked one by one
merge       the order in which they can be appended: what is named comes first
present     what a log already holds of the experiment, compared with the file
load        a file's records into a log
archive_log a file's records as a log of their own, to fold them
"""
