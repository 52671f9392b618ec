"""Ranks: a trainer engine of many processes, and checkpoints written by all of them.

messages      the messages between a trainer process and its ranks
sight         a rank's releases and files, and the check that all ranks see the same
spool         the weights of one version in a file filled by all ranks
rank_process  the process of one rank
nodes         the machines besides the trainer's own, as listed by its launcher
host          starts and ends ranks on such a machine
child         one process of a rank, local or remote, as seen by the trainer process
crew          all processes of an engine: started, called, lost, ended
controller    the engine in the trainer process: every call goes to all ranks
collectives   messages between torch's ranks
torch_shards  torch's tensors as parts of a checkpoint, complete on each rank or spread over ranks
spread        tensors with a part on each rank: gathered, divided, digested
"""
