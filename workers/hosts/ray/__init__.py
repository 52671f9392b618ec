"""Workers as actors of a Ray cluster. Ray is called only by a separate process, the driver, never by the daemon.

open_cluster  Ray's defaults of an open cluster
messages   messages between launcher and driver: lines of JSON, no pickle
placement  the nodes of a worker, and missing resources
handles    the last reported state of a worker, of a sweep, of a search
launcher   the daemon's side: orders in, reports out; never waits
driver     the separate process: placement groups and actors, named by the worker's id
cluster    nodes and their memory, actors and groups, according to Ray's control store
arrival    an actor's checks and clean-up on a node before work
actor      the content of an actor: a guest, its log file, ranks on further nodes
deaths     why Ray ended an actor, in words

A driver without the cluster for a minute is ended by Ray; the launcher starts the next driver, which finds the actors
by name. Only `driver`, `cluster` and `actor` import ray, and only in separate processes.
"""
