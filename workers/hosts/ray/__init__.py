"""Workers as actors of a Ray cluster. The daemon never calls Ray: a separate process does, its driver.

open_cluster  defaults of Ray that leave a cluster open
messages   messages between launcher and driver: lines of JSON, no pickle
placement  the nodes of a worker, and the resources that it waits for
handles    the last reported state of a worker, of a sweep, of a search
launcher   the daemon's side: orders in, reports out; never waits
driver     the separate process: placement groups and actors, named by the worker's id
cluster    nodes and their memory, actors and groups, according to Ray's control store
arrival    an actor's checks and clean-up on its node before it works
actor      the content of an actor: a guest, its log file, ranks on further nodes
deaths     why Ray ended an actor, in words

A driver that loses the cluster for a minute is ended by Ray itself; the launcher starts the next one, which finds the
actors by their names. Only `driver`, `cluster` and `actor` import ray, and only in processes of their own.
"""
