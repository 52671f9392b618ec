"""Observation of a daemon: metrics, and the checks of `rftd doctor`. In reading order:

metrics_spec     the part of a specification needed by the metrics
metrics_counted  the fields of an experience used for counts, and the effective plans
metrics_void     records without effect
metrics_answers  answers to leases, counted only from the lease's holder
metrics_groups   the groups under way, for counting their cancelled rollouts
metrics_feed     records to metrics
metrics_follower the log to the feed
metrics_state    the tables to gauges
metrics_scrape   the text of /metrics, at bounded cost
doctor/          checks of machine, folder and daemon

A new metric: its declaration in rftd.ops.metrics, and the line counting it: in `metrics_feed` if a record says it (of a
training step: `_count_step`), in `metrics_state` if the tables do (`_show_step`).
"""
