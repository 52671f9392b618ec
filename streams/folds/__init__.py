"""Pure state, folded from one experiment's events; the same for every interleaving of the partitions (rule 6).

A record that comes again later in its partition changes nothing: a transport may repeat what was retried long ago.

spine       the experiment's life, stages, plans and steps: one partition, so its order is given
groups      leases and rollouts of groups that are not closed yet
ledger      every experience of closed groups: waiting, planned or retired
weights     published versions, and which of them count
evals       evaluations under way
roster      the workers that joined and left
run_state   all of it: what the planner, the dispatcher and the controller decide on
"""
