"""Where worker processes run, who they are, and how they are watched. In reading order:

ray/          actors of a Ray cluster
membership    who a worker is, that it lives, how it left
usage         the memory and processor time of a worker's processes
executor      the seam: start, adopt, watch, end
environment   the variables that a worker has: built from what is allowed
allotment     which GPUs each of them has
local         processes of this machine
local_search  those that an earlier daemon started
by_role       a launcher of its own for each role
place         one worker of an experiment at a time, and the next only once nothing is left of it
leftovers     what a worker started and left running: how it is found, and ended
started_here  the same where no daemon looks after it: by the worker itself, and by the next one
"""
