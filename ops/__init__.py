"""The ground that every part stands on: to be watched, timed and broken on purpose. It imports nothing else of rftd.

In reading order:

errors      the one tree of errors, each with a code, an exit status and an HTTP status
limits      every bound: sizes, counts, depths, time-outs
clock       the source of time (`Clock`), real or set by hand
process_age the time since this process was started
ids         the source of identity: UUIDv7 for what is new, UUIDv5 for what follows from a cause
decoding    plain data as one type, for several threads at once
cancelling  cancellation that an error has taken the place of, and work that goes on despite one
durable     files and folders that survive a power cut
own_folder  folders and files of this user alone, and the refusal of those that are not
plugins     named extensions: our table, then entry points of third parties
plugin_arguments  the arguments that an extension declares
paths       paths that people write, in one form
hub_id      names of models and datasets on the hub
exchange    two names that change places at once
cycles      cyclic garbage, looked for seldom, and memory that goes back to the system
processors  the number of threads that a process may use
faults      named points at which a test may kill, fail or delay the process
two_samples the test of Kolmogorov and Smirnov: do two samples come from one distribution?
words       what a role does or waits for, as people read it
redaction   secrets that print as `***` and never enter an event
machine_environment  the variables that a child process may have
outbound    every address that a file, a worker or a record names is checked here
outbound_transport  connections of httpx to public addresses alone
log_file    files of log lines and of a process's output that stay small
tracing/    spans of OpenTelemetry: which are made, their names, and their way out
logs        structlog set-up: JSON or console, one line an event, equal ones counted
histogram   counts of values by size, many at once
metric_totals  totals that are read at a scrape and not counted
metrics     every metric name, in one file
releases    the installed releases of programs and libraries
extras      optional packages that many installations do without
commit      the commit that an installation was made from
tls         a certificate and its key, checked and renewed
open_files  the number of files and connections that a process may have open
http_connection  one client's connection: what is no request, or comes too slowly, is refused; its end
bound_socket  the port of a server, and its URL
http_server uvicorn on a bound socket, whose clients go where no file can be opened
health      liveness and readiness, as named checks; the lines of `rftd doctor`
"""
