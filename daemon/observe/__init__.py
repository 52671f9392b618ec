"""Observation of a daemon: metrics, and the checks of `rftd doctor`. In reading order:

metrics_declared  what the metrics need of a specification
metrics_counted   the fields of an experience that are counted, and the plans that count
metrics_void      the records that do not
metrics_answers   answers to leases, which count if the holder wrote them
metrics_groups    the groups under way, for what is cancelled of them
metrics_feed      records to metrics
metrics_follower  the log to that feed
metrics_state     the tables to gauges
metrics_scrape    the text of /metrics, whose cost is bounded
doctor/           checks of machine, folder and daemon
"""
