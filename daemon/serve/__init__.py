"""Composition of one daemon. In reading order:

claim           the folder and the port of one daemon, claimed before the slow imports
service         all parts of a daemon wired together: log, log server, projections, supervisor, HTTP
report_pages    the routes of reports to share, above API and client
entrance        authentication and TLS; `entrance_options` has the options
launching       the roles started by a daemon, and their launchers; `launching_options` has the options
keeping         retention rules of payloads and files; `keeping_options` has the options
alert           one alert, and the file keeping alerts over restarts
alerts          news of runs and disks, posted to receivers of the daemon's configuration
log_source      the location of the log: embedded, or at a URL
reconnecting    retries while a log or a database is unreachable
external_worker a worker not started by a daemon joins experiments under way, where most useful
own_answer      the daemon checks its own readiness
data_folder     the paths in the daemon's folder
folder_log      the kind of log behind the folder's tables
log_identity    the identity distinguishing a log from its copies
"""
