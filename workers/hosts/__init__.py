"""Start, identity and supervision of worker processes. In reading order:

ray/          actors of a Ray cluster
membership    a worker's identity, heartbeats with memory and processor time, and departure
executor      the seam: start, adopt, watch, end
environment   the environment variables of a worker, built from an allow-list
allotment     the GPUs of each worker
local         processes of this machine
local_search  processes started by an earlier daemon
by_role       a separate launcher for each role
local_slot    a slot with one worker at a time; the next starts only after all leftovers have ended
leftovers     processes left running by a worker: search and termination
started_here  the same without a daemon: by the worker itself, and by a later worker
"""
