"""Control: the daemon's decisions, as pure functions of folded state and a clock reading. No I/O, no engine.

The planner alone writes batch.planned and experience.retired, the dispatcher leases, expiries, closed groups and
eval.completed, the controller the life of the experiment. In reading order:

hold         the reason why a decider stops, with texts: returned beside its events
holds        every hold of controller and dispatcher
planner_holds every hold of the planner
deciders     the three deciders of one experiment, and the last answer of each
controller   the life of one experiment: stages, completion, failure, a lost learning signal
policies/    how far explorers may run ahead, and which experiences may be trained
budgets      the pause for a spent budget, or for a run without a look by a person
by_evaluation the best checkpoint, an early stop, the pauses of rules: in words and as events
planner      batches to plan and experiences to retire now
retiring     experiences barred from every batch: uninformative, filtered, of incomplete groups, or given up; the stale
             and those over capacity by `policies/paced`, those of an ended stage by `planner`
batches      `batch.planned` from the chosen experiences, and the rows of a step
dispatcher   leases, closed groups and abandoned ones now, in this order:
liveness     the last heartbeat of each worker, for scheduling alone: a dead worker is noticed by
             `rftd.daemon.run.supervisor.fleet`
closing      finished groups, and groups given up; stages without need of further groups
over_rollout explore steps ended without their slowest tasks
isolation    groups whose workers died, and explorers reserved for them
windows      the weights of the next group: sync points, requests to the trainer, weights too late
sweep_runs   runs of a sweep to begin or end
selectors/   the rows explored next
leasing      groups ready to start, and their explorers
processing   finished groups leased for the experience pipeline
evaluation   held-out tasksets: leased and complete
simulator/   `rftd sim`: an experiment in virtual time, by the real planner and policies
"""
