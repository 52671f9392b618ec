"""Workers as actors of a Ray cluster. The daemon never speaks to Ray: a process beside it does, its driver.

open_cluster  defaults of Ray that leave a cluster open
messages   what the two say to each other: lines of JSON, no pickle
placement  the node that a worker takes, and what it waits for
handles    what was last heard of a worker, of a sweep, of a search
launcher   the daemon's side: orders in, reports out; it never waits
driver     the process beside: placement groups and actors, named by the worker's id
cluster    what Ray's control store says of nodes and their memory, actors and groups
arrival    what an actor finds out and ends on its node before it works
actor      what an actor runs: a guest, its log file, ranks on further nodes
deaths     why Ray ended an actor, in words

A driver that loses the cluster for a minute is ended by Ray itself; the launcher starts the next one, which finds the
actors by their names. Only `driver`, `cluster` and `actor` import ray, and only in
processes of their own.
"""
