"""Dashboards and rules of `ops/`, as data. In reading order:

panel       a panel, a dashboard, and the JSON of both
overview    all experiments; streams and projections
experiment  one experiment
rules       recording rules and alerts, with what makes each fire
rule_cases  the cases of promtool: what fires, and what must not
"""
