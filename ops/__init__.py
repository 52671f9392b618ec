"""What every part needs to be watched, timed and broken on purpose. Imports nothing else of rftd.

In reading order:

errors      the one tree of errors, each with a code, an exit status and an HTTP status
limits      every bound: sizes, counts, depths, time-outs
clock       where time comes from (`Clock`), real or set by hand
ids         where identity comes from: UUIDv7 for what is new, UUIDv5 for what follows from a cause
plugins     named extensions: our table, then entry points of third parties
decoding    plain data as one type, for several threads at once
cancelling  cancellation that an error has taken the place of
durable     files and folders that survive a power cut
plugins     named extensions: our table, then entry points of third parties
plugin_arguments  what an extension declares of its arguments
paths       paths that people write, in one form
exchange    two names that change places at once
cycles      cyclic garbage, looked for seldom, and memory that goes back to the system
processors  how many threads a process may use
faults      named points at which a test may kill, fail or delay the process
two_samples do two samples come from one distribution? (Kolmogorov and Smirnov)
redaction   secrets that print as `***` and never enter an event
logs        structlog set-up: JSON or console, one line an event
histogram   counts of values by size, many at once
metrics     every metric name, in one file
releases    which releases of programs and libraries run here
health      liveness and readiness, as named checks; the lines of `rftd doctor`
"""
