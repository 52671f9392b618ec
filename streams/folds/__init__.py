"""Pure state, folded from one experiment's events; the same for every interleaving of the partitions (rule 6).

spine              the experiment's life, stages, plans and steps: one partition, so its order is given
task_queue         the tasks that were added to a stage while it runs
signal             whether the newest batches teach anything, and since when not
scoreboard         the figures of a stage's evaluations, version by version, and what they decide
spending           what was spent of the experiment's budgets, and when somebody last looked
group              one open group: its leases, and how its rollouts ended
selection          the rows that selectors drew, and the rewards that they are told
groups             leases and rollouts of groups that are not closed yet
replay_buffer      every experience of closed groups: waiting, planned or retired
weights            published versions, and which of them count
evals              evaluations under way
roster             the workers that joined and left
ranges             intervals: closed groups, versions of weights; numbers in few bytes
once               what must not count twice: plans by their steps, other decisions by their newest ids
key_use            one record that a command became
keyed_rows         what belongs to many keys, in few bytes
added_keys         the keys of requests that added tasks, in few bytes
commands           which key was used for which command: of the whole log
answered_requests  the request that each key was first used for, in few bytes
requests           what other programs asked for and nobody has answered yet: of the whole log
sweeps             sweeps of experiments: of the whole log
letters            dead letters, and what became of each: of the whole log
failed_tasks       tasks of which too few rollouts succeeded: of the whole log
run_state          all of it, and the kept checkpoints: what the planner, the dispatcher and the controller decide on
pieces             a fold in pieces, none of which takes long to encode
snapshot           a fold as bytes, with what must be true of the log for it to be believed
worker_state       what a worker does or waits for: the list of its states
sync_failure       how a weight sync fails: the list of reasons
evaluations        evaluations that are due by that state
"""
