"""The selector of a taskset: which of its rows is explored next."""

from __future__ import annotations

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.issue import Notes, Unsupported
from rftd.daemon.config.resolve.arguments import check_declared
from rftd.daemon.config.schema.buffer import DataSelector
from rftd.daemon.config.schema.experiment import Experiment
from rftd.ops.errors import ConfigError
from rftd.workers.control.selectors.registry import SELECTORS, draws, follows_rewards
from rftd.workers.control.selectors.registry import check_selector as check_name


def check_selector(given: DataSelector, taskset: FieldPath, experiment: Experiment, notes: Notes) -> str:
    """The selector, after finding what is wrong with its name, its columns and its arguments.

    Held-out rows are all answered, in order: their selector is `sequential`.
    """
    path: FieldPath = (*taskset, "data_selector")
    selector = given.selector_type
    if "eval_tasksets" in taskset:
        idle = [field for field in ("feature_keys", "kwargs") if getattr(given, field)]
        for field in ["selector_type", *idle] if selector != "sequential" else idle:
            notes.warn(f"{show((*path, field))} has no effect: held-out rows are answered in order")
        return "sequential"
    try:
        check_name(selector)
    except ConfigError as error:
        notes.wrong((*path, "selector_type"), error.what, error.fix, Unsupported)
        return selector
    if not draws(selector):
        for field in ("feature_keys", "kwargs"):
            if getattr(given, field):
                notes.warn(f"{show((*path, field))} has no effect: {selector} goes by the places of rows")
        return selector
    check_declared(SELECTORS, selector, given.kwargs, (*path, "kwargs"), notes)
    if not SELECTORS.builtin(selector):
        return selector  # the daemon imports it before it accepts
    try:
        SELECTORS.load(selector).check_keys(given.feature_keys)
    except ConfigError as error:
        notes.wrong((*path, "feature_keys"), error.what, error.fix)
    if experiment.deterministic and follows_rewards(selector):
        what = f"is {selector}, whose draws depend on which rollouts end first, and the experiment is deterministic"
        fix = "write sequential, shuffle, random or offline_easy2hard, or deterministic: false"
        notes.wrong((*path, "selector_type"), what, fix)
    return selector
