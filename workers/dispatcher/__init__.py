"""The dispatcher: the only writer of leases, expiries, closed groups and eval.completed (rule 1).

decision     an event and the partition that it goes to
liveness     who was heard of when: scheduling, never truth
closing      groups that are over, or given up
over_rollout explore steps that are over without their slowest tasks
stale_flights groups that the policy gives up
isolation    groups whose workers died, and explorers that are kept for them
windows      on which weights the next group begins: sync points, questions to the trainer, what came too late
collecting   how far a stage is that trains nothing
leasing      groups that may start, and where
stragglers   leases that are slow, given to a second explorer
evaluation   held-out tasksets: what is due, leased and complete
dispatcher   all of it, in order
"""
