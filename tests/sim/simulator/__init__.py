"""A deterministic simulation of the whole system: real roles, fake engines, virtual time, and faults from a seed.

loop        virtual time, processes that can be killed and stopped anywhere, order drawn from the seed
network     how each process reaches the log: late, twice, or not at all
shape       the experiment of a world
scenario    what happens in a world: everything that a seed decides
engines     fake engines that fail, hang and differ
machine     the processes: daemons, workers, what starts them again
kinds       faults of other kinds, one file each: clocks, strangers, cut logs, ... and how to add one
chaos       the faults, when their time or their place has come
clients     strangers who converse over HTTP with explorers that serve, and remember what they were told
owner       what the owner of the experiment asks of whichever daemon answers
world       one seed from submission to verdict
file_times  when files were written, on the world's clock
readings    the log as who misses nothing reads it
plans       what each batch had to be made of
oracles     what must hold at the end, whatever happened
bugs        planted bugs that the oracles must find, one for each promise
ledger      seeds that were run, over all time

A new fault: a subclass of `kinds.kind.Kind` in a file of its own and one line in `kinds.KINDS`. It has a name, a share
of the worlds, `draw` (from its own chances, so that no other world changes), and what it needs of `around` (patches
while the world lasts), `begin` (spawns what happens later; faults end at `calm_s`) and `oracles` (asked in every
world). Its planted bugs go into a file of `bugs`: each oracle and each rule of verify needs one that finds it, in 200
seeds at most.
"""
