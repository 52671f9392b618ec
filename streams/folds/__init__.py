"""Pure state, folded from one experiment's events; equal for every interleaving of the partitions.

spine              the experiment's life, stages, plans and steps: one partition, so its order is given
task_queue         the tasks added to a running stage
signal             the learning signal of the newest batches, or the beginning of its loss
scoreboard         the figures of a stage's evaluations, version by version, and their consequences
spending           the spending of an experiment's budgets, and the last view by a person
group              one open group: its leases, and the ends of its rollouts
processing         the experience pipeline's work on one finished group
selection          the rows drawn by selectors, and the rewards reported to them
groups             leases and rollouts of groups still open
replay_buffer      every experience of closed groups: waiting, planned or retired
weights            published versions, and the effective ones among them
evals              evaluations under way
roster             the workers joined and departed
ranges             intervals: closed groups, versions of weights; numbers in few bytes
key_use            one record written by a command
keyed_rows         values of many keys, in few bytes
added_keys         the keys of requests adding tasks, in few bytes
commands           the use of keys by commands: of the whole log
answered_requests  the first request of each key, in few bytes
requests           unanswered requests of other programs: of the whole log
sweeps             sweeps of experiments: of the whole log
letters            dead letters, and the decision on each: of the whole log
failed_tasks       tasks with too few successful rollouts: of the whole log
run_state          all of these, and the kept checkpoints: the basis of planner, dispatcher and controller
pieces             a fold in pieces, each quick to encode
snapshot           a fold as bytes, with the facts about the log required for its use
worker_state       the work of a worker or the reason of its wait: the list of states
sync_failure       the failures of a weight sync: the list of reasons
evaluations        evaluations due in a state
"""
