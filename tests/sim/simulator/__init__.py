"""A deterministic simulation of the whole system: real roles, fake engines, virtual time, and faults from a seed.

loop        virtual time, processes that can be killed and stopped anywhere, order drawn from the seed
network     how each process reaches the log: late, twice, or not at all
shape       the experiment of a world
scenario    what happens in a world: everything that a seed decides
engines     fake engines that fail, hang and differ
machine     the processes: daemons, workers, what starts them again
chaos       the faults, when their time or their place has come
owner       what the owner of the experiment asks of whichever daemon answers
world       one seed from submission to verdict
readings    the log as who misses nothing reads it
plans       what each batch had to be made of
oracles     what must hold at the end, whatever happened
bugs        planted bugs that the oracles must find, one for each promise
ledger      seeds that were run, over all time
"""
