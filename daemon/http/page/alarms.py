"""`alarms_of`: the reasons to look at a run now, the worst first, from its page and its waits."""

from __future__ import annotations

from typing import Final, NamedTuple

from rftd.daemon.http.views.experiments import ExperimentPage, WhyNow
from rftd.daemon.http.views.system import SystemView
from rftd.daemon.run.why.wait import next_of, what_of
from rftd.ops.words import Level
from rftd.storage.queries.experiments import ExperimentSummary

_SOLVED = "solved"  # the name in `streams.folds.signal`
"""Cause of a lost learning signal for tasks solved by every rollout."""
_CLIPPED = "{:.0%} of the tokens of the newest steps are clipped; lower the learning rate or max_staleness"
"""Template of the text about clipped tokens, with the share from 0 to 1."""
_SHOWN_ROLES = ("experiment", "signal")
"""Roles with their words in the sentence, or in an alarm of their own."""
_FULL: Final = 0.05
"""Free share of a volume below which a run may stop for lack of space."""


_MOST_CLIPPED = 0.2
"""Share of clipped tokens above which a run counts as off-policy."""


class Alarm(NamedTuple):
    """A reason to look at a run: its title, and its remedy in words."""

    title: str
    """Title of the alarm, one line."""
    text: str
    """Reason and remedy in words."""
    is_broken: bool
    """True if the run makes no progress until the cause is repaired."""


def alarms_of(page: ExperimentPage, why: WhyNow) -> list[Alarm]:
    """Returns the alarms of a run, the worst first."""
    summary = page.experiment.summary
    alarms: list[Alarm] = []
    if summary.state in ("failed", "rejected"):
        alarms.append(Alarm(f"{summary.state}: {summary.code or 'no code'}", summary.reason or "", True))
    if page.waiting:
        alarms.append(Alarm("stands still", page.waiting, True))
    for wait in why.waits:
        if wait.level == Level.STUCK and wait.role not in _SHOWN_ROLES and summary.state == "running":
            role = wait.role if wait.slot is None else f"{wait.role} {wait.slot}"
            alarms.append(Alarm(f"{role} {what_of(wait)}", next_of(wait), True))
    if page.signal is not None and page.signal.cause not in (None, _SOLVED):
        since = "" if page.signal.since_step is None else f" since step {page.signal.since_step}"
        alarms.append(Alarm(f"no learning signal{since}", page.signal.reason or "", False))
    if page.signal is None or page.signal.cause is None:
        alarms += [Alarm("off-policy", _CLIPPED.format(summary.clipped), False)] if is_off_policy(summary) else []
    return alarms


def is_off_policy(summary: ExperimentSummary) -> bool:
    """Returns True for a run with too many clipped tokens in the newest steps."""
    return summary.clipped is not None and summary.clipped > _MOST_CLIPPED


def system_alarms_of(system: SystemView) -> list[Alarm]:
    """Returns the alarms of the daemon: checks that fail, and a volume almost full."""
    alarms = [Alarm(f"{check.name} fails", check.reason, True) for check in system.checks if not check.ok]
    if system.disk is not None and system.disk.free_bytes < _FULL * system.disk.size_bytes:
        free = 100 * system.disk.free_bytes / system.disk.size_bytes
        remedy = "rftd gc --dry-run lists what can be deleted; runs pause before the disk is full"
        alarms.append(Alarm(f"{free:.1f} % of the disk are free", remedy, False))
    return alarms
