"""Dashboards and rules of `ops/`, as data. In reading order:

panel       a panel, a dashboard, and the JSON of both
overview    all experiments; streams and projections
experiment  one experiment
rules       recording rules and alerts, with a case that makes each fire
"""
