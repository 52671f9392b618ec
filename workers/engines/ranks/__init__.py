"""Ranks: a trainer engine that is many processes, and the checkpoints that they write together.

messages      what a trainer process and its ranks say to one another
sight         what a rank sees: releases, files; whether all see the same
spool         the weights of one version in a file that all ranks fill
rank_process  the process of one rank
nodes         the machines beside the trainer's own, as its launcher tells
host          starts ranks on such a machine, and ends them
child         one process as the trainer process sees it, here or there
crew          the processes: started, called, lost, ended
controller    the engine in the trainer process: every call is one of all ranks
collectives   what ranks of torch tell one another
torch_shards  torch's tensors as such parts, whole or spread over ranks
spread        tensors with a part on each rank: put together, taken apart, digested
"""
