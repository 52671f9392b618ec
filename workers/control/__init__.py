"""Control: what the daemon decides, as pure functions of folded state and a clock reading. No I/O, no engine.

The planner is the only writer of batch.planned and experience.retired, the dispatcher of leases, expiries, closed
groups and eval.completed (rule 1), the controller that of the experiment's life. In reading order:

hold         why a decider stops, with its words: what it returns beside its events
holds        every hold of controller, planner and dispatcher
deciders     the three of one experiment, and what each said last
controller   the life of one experiment: stages, completion, failure, a lost learning signal
obstacle     what an experiment pauses for by itself, or fails of
policies/    how far explorers may run ahead, and what may be trained on
budgets      the pause for a budget that is spent, or for a run at which nobody looks
by_evaluation the best checkpoint, an early stop, the pauses of rules: in words and as events
planner      what to plan and retire now
retiring     what no batch may hold: what teaches nothing, what was given up
batches      the rows of a step, and `batch.planned` itself
dispatcher   what to lease, close and give up now, in this order:
liveness     who was heard of when: scheduling, never truth
closing      groups that are over, or given up; stages that need no more of them
over_rollout explore steps that are over without their slowest tasks
isolation    groups whose workers died, and explorers that are kept for them
windows      on which weights the next group begins: sync points, questions to the trainer, what came too late
sweep_runs   which runs of a sweep begin or end
selectors/   which rows are explored next
leasing      groups that may start, and where
evaluation   held-out tasksets: leased and complete
simulator/   `rftd sim`: an experiment in virtual time, by the real planner and policies
"""
