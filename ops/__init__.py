"""Foundations shared by all packages: errors, limits, time, identity, logging, metrics, fault points. Imports nothing
else of rftd.

In reading order:

errors      the one tree of errors, each with a code, an exit status and an HTTP status
limits      every bound: sizes, counts, depths, time-outs
clock       the source of time (`Clock`), real or set by hand
process_age the time since this process was started
ids         the source of identity: UUIDv7 for new objects, UUIDv5 for objects derived from a cause
decoding    decoders of plain data into one type, safe for several threads
cancelling  cancellation hidden by another error, and work that survives a cancellation
durable     files and folders that survive a power cut
own_folder  folders and files private to this user, and the refusal of others
plugins     named extensions: the built-in table, then entry points of third parties
paths       paths written by people, in one normal form
hub_id      names of models and datasets on the hub
exchange    atomic exchange of two names
cycles      rare collections of cyclic garbage, and return of freed memory to the system
processors  the number of threads for a process
faults      named points at which a test may kill, fail or delay the process
two_samples the Kolmogorov-Smirnov test: do two samples come from a common distribution?
words       a role's work or wait, in words for people
redaction   secrets that print as `***` and never enter an event
machine_environment  the environment variables allowed for a child process
outbound    checks of every address named by a file, a worker or a record
outbound_transport  connections of httpx to public addresses only
log_file    size-bounded files of log lines and of a process's output
tracing/    spans of OpenTelemetry: which are made, their names, and their export
logs        structlog set-up: JSON or console, one line an event, repeated lines counted
histogram   bucket counts of observed values, many at once
metric_totals  totals read at a scrape instead of counted
metrics     every metric name, in one file
releases    the installed releases of programs and libraries
extras      optional packages that many installations do without
commit      the commit from which an installation was made
tls         a certificate and its key, checked and renewed
open_files  the limit of open files and connections of a process
http_connection  one client's connection: refusal of malformed or slow requests; its end
bound_socket  the port of a server, and its URL
http_server uvicorn on a bound socket, which drops clients when no file can be opened
grafana/, prometheus/, systemd/  dashboards, alerting rules, and a unit for a machine
health      liveness and readiness, as named checks; the lines of `rftd doctor`
"""
