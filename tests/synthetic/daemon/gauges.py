"""Gauges of state as an experiment's page has them, to be held against those that a scrape shows."""

from __future__ import annotations

import re

from prometheus_client.parser import text_string_to_metric_families

from rftd.daemon.http.views.experiments import ExperimentPage
from rftd.storage.queries.experiments import ExperimentSummary

OF_STATE = (
    "rftd_experiment_state",
    "rftd_experiment_state_timestamp_seconds",
    "rftd_experiment_queue_position",
    "rftd_experiment_queue_wait_seconds",
    "rftd_train_step",
    "rftd_train_steps_planned",
    "rftd_buffer_experiences",
    "rftd_weight_version",
    "rftd_checkpoint_last_success_timestamp_seconds",
    "rftd_eval_score",
    "rftd_rollout_reward_mean",
)
"""The gauges that a page has, too."""


def shown(text: str) -> dict[str, float]:
    """Every sample of a scrape by its name and labels, as `name{label=value,...}`."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def standing(text: str, experiment: str) -> dict[str, float]:
    """The gauges of state of one experiment in a scrape; of its buffer whole places."""
    found: dict[str, float] = {}
    for name, value in shown(text).items():
        metric, _, labels = name.rstrip("}").partition("{")
        if metric not in OF_STATE or f"experiment={experiment}" not in labels.split(","):
            continue
        place = re.sub(",priority=[a-z]+", "", name)
        found[place] = found.get(place, 0.0) + value
    return found


def expected(page: ExperimentPage, label: str) -> dict[str, float]:
    """The same from the page that `rftd get` shows."""
    summary = page.experiment.summary
    books = page.experiment.books
    found: dict[str, float | None] = {
        f"rftd_experiment_state{{experiment={label},state={summary.state}}}": 1,
        f"rftd_experiment_state_timestamp_seconds{{experiment={label}}}": summary.state_ns / 1e9,
        f"rftd_experiment_queue_position{{experiment={label}}}": summary.queue_position,
        f"rftd_experiment_queue_wait_seconds{{experiment={label}}}": _queue_wait_s(summary),
        f"rftd_train_step{{experiment={label}}}": summary.step,
        f"rftd_train_steps_planned{{experiment={label}}}": summary.total_steps,
    }
    for place, count in (("waiting", books.waiting), ("cooling", books.cooling), ("open", books.open)):
        found[f"rftd_buffer_experiences{{buffer={place},experiment={label}}}"] = count
    published = [row.version for row in page.weights if row.counts]
    served = [row.version for row in page.workers if (row.role, row.state) == ("explorer", "live")]
    of_trainer = f"rftd_weight_version{{experiment={label},holder=trainer}}"
    found[of_trainer] = max(published, default=None)
    of_explorers = f"rftd_weight_version{{experiment={label},holder=explorer}}"
    found[of_explorers] = min((version for version in served if version is not None), default=None)
    saved_ns = max((row.committed_ns for row in page.checkpoints if row.counts), default=None)
    saved = f"rftd_checkpoint_last_success_timestamp_seconds{{experiment={label}}}"
    found[saved] = None if saved_ns is None else saved_ns / 1e9
    for row in page.evals:
        found[f"rftd_eval_score{{evalset={row.taskset},experiment={label},metric=score}}"] = row.score
    if page.reward_curve:
        found[f"rftd_rollout_reward_mean{{experiment={label}}}"] = page.reward_curve[-1].reward_mean
    return {name: value for name, value in found.items() if value is not None}


def _queue_wait_s(summary: ExperimentSummary) -> float | None:
    """The time until it began; None before, where it depends on the moment."""
    return None if summary.started_ns is None else (summary.started_ns - summary.submitted_ns) / 1e9


def differing(found: dict[str, float], wanted: dict[str, float]) -> dict[str, tuple[float | None, float | None]]:
    """The gauges that a scrape and a page have otherwise, or that only one of them has: (scrape, page).

    Times of a page have travelled as milliseconds.
    """
    differ = {}
    for name in found.keys() | wanted.keys():
        one = found.get(name)
        other = wanted.get(name)
        near_s = 2e-3 if "_seconds{" in name else 0.0
        if one is None or other is None or abs(one - other) > near_s:
            differ[name] = (one, other)
    return differ
