"""The composition root: the only package that knows all others. In reading order:

cli             the command line: a table of verbs, each imported only when it is called
settings        the options that every verb shares
option_group    several options that a verb takes as one value
price           what an hour of an accelerator costs
verbs/          one file for each verb, with what it shows
daemon_file     the same options from a YAML file
claim           the folder and the port of one daemon, taken before the slow imports
service_options  what a daemon is told
service         one daemon, composed: log, log server, projections, supervisor, HTTP
allowance_options  the options that allow names to others than the owner
entrance        who is let in, and how; `entrance_options` has the options
launching       which workers a daemon starts, and by which launcher; `launching_options` has the options
keeping         the rules by which payloads and files go; `keeping_options` has the options
log_option      the options that say where the log is; `trace_option` those that say where traces go
log_source      where the log is: embedded, or at a URL
patience        waiting out a log or a database that is away
external_worker  a worker that nobody ordered joins what is under way, where it is of use
living_wait     waits for a process that is alive, without an end of its own
own_answer      the daemon asks itself whether it is ready
data_folder     what lies where in the daemon's folder
folder_log      which log its tables are of
log_identity    what tells its log from that of a copy
registry        every experiment in the log, by state, folded from the spines
dlq/            records and tasks that were set aside, and the verdicts on them
trust/          who may do what
operations      the commands that the API may give
why/            what each role waits for, and what would unblock it
supervisor/     which experiment runs, and its life
config/         the experiment file
views/          the reads and commands of a daemon
api/            that over HTTP
client/         the same from the other side
requests/       the same by records in the log, from anywhere
metrics_declared  what the metrics need of a specification
metrics_counted  the fields of an experience that are counted, and the plans that count
metrics_void    the records that do not
metrics_answers answers to leases, which count if the holder wrote them
metrics_groups  the groups under way, for what is cancelled of them
metrics_feed    records to metrics
metrics_follower  the log to that feed
metrics_state   the tables to gauges
metrics_scrape  the text of /metrics, whose cost is bounded
output/         tables, figures, errors for people
doctor/         checks of machine, folder and daemon
demo/           `rftd demo`
"""
