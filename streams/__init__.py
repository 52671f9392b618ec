"""The log and its language. In reading order:

topics        the streams: names, partitions, retention
writers       the names under which processes write
envelope      a record's attributes; `Draft` before, `Record` after the log took it
bounds        what a number in an event or a specification may be
marked        a fact beside a field: its annotation carries a mark
log_place     which fields are places in the log
stored_path   which fields are paths, and which of them an experiment reads
declaration   marks of a declared field: unit, effect, what it names
slow_rollouts sections of `explorer` on slow rollouts
optimizer     section `algorithm.optimizer`, with its warm-up in steps
synchronizer  section `synchronizer`, as a file has it and a specification keeps it
engine_needs  what a rollout engine needs, the memory that workers take, and the cluster
auxiliary     a model beside the one that is trained
reach         which addresses and keys an experiment may use, and where explorers serve
updates       the optimizer steps that a batch gives, and how tokens of older weights are corrected for
by_evaluation what the figures of evaluations decide
budgets       section `limits`: what an experiment may spend before it pauses
row_format    section `format`, what the keys of a row hold
tracking      a tracker that follows an experiment's log
spec          what an experiment is, resolved
explorer_devices       the GPUs of an explorer, engine by engine, and of all workers
schedule      which weights an explore step needs, when weights are published, when an evaluation is due
row_order     which row comes at which place of the experiment: a pure function
stage_tasks   the tasks of a stage: the rows of its tasksets, one after another
worker_state  what a worker does or waits for: the list of its states
sync_failure  how a weight sync fails: the list of reasons
step_figures  the telling figures of a training step, whatever their engine calls them
reward_parts  the named parts of rewards, as figures of steps and evaluations
estimators    estimates from samples: of several tries, with their uncertainty
eval_answers  the answers that an evaluation keeps, and which of many
naming        which experiment a name or an id means
shared_fields          fields that two halves use alike, and what a half leaves out of them
split_submission       experiments that are handed in as two halves
events/       the event types
arrays        numeric arrays as bytes
codec         events to bytes and back, with limits
newest        the newest entries of what only grows
chain         the hash chain, heads that are remembered
log           `EventLog`, the contract of every backend
backends/     memory (with faults), sqlite (the embedded default)
socket/       the embedded log for other processes, over a Unix socket
requests      what other programs ask for by records in the topic of requests
deadletters   records that are not ours
fencing       epochs of roles in a partition
effective     from a record to the event that a fold takes in: what every reader leaves out
start         where an experiment begins in the log
group_id      the id of a group, which says its place
shared_history what a fork shares with its parent
spine_digest  a digest of the spine that steps and checkpoints carry
announcement  a digest of the newest announcement of weights, which steps carry
feed          hands out what is read; nothing is passed before it was taken
follower      reads partitions into a fold
role          a leased role: fenced, its appends read back
patience      appends that wait for space
folds/        pure state: the spine, groups, the replay buffer of experiences, weights
evaluations   evaluations that are due by that state
eval_figures  the figures of an evaluation beside its score
decision      an event that was decided, and the partition that it goes to
losses        what survivors remember that the log does not hold any more
retention     heartbeats are forgotten after a while
payloads      the token arrays of experiences: dropped, brought back, their space returned
portable/     one experiment's log in a file, and from a file into any log
verify/       the offline checker of the rules over any log
"""
