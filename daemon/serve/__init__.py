"""One daemon, composed. In reading order:

claim            the folder and the port of one daemon, taken before the slow imports
service          one daemon, composed: log, log server, projections, supervisor, HTTP
entrance         who is let in, and how; `entrance_options` has the options
launching        which workers a daemon starts, and by which launcher; `launching_options` has the options
keeping          the rules by which payloads and files go; `keeping_options` has the options
log_source       where the log is: embedded, or at a URL
patience         waiting out a log or a database that is away
external_worker  a worker that nobody ordered joins what is under way, where it is of use
own_answer       the daemon asks itself whether it is ready
data_folder      what lies where in the daemon's folder
folder_log       which log its tables are of
log_identity     what tells its log from that of a copy
"""
