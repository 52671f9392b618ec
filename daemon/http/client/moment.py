"""`Moment`: an experiment's page with its roles' waits and its training pace, as far as the daemon answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from rftd.daemon.http.client.client import Answer, Client
from rftd.daemon.http.views import experiments, history, tasks
from rftd.daemon.http.views.experiments import ENDED, ExperimentPage
from rftd.daemon.http.views.tasks import QueueState
from rftd.daemon.run.why.wait import Why
from rftd.ops.errors import RftdError, UnreachableError, WaitTimeoutError
from rftd.storage.queries.steps import StepRow

RECENT_STEPS: Final = 20
"""Number of newest steps in the pace: more would include an old stage or an old machine."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds between the ends of consecutive steps, and tokens trained per second."""

    step_s: float
    tokens_per_s: float
    last_ns: int
    """End of the newest step."""


@dataclass(frozen=True, slots=True)
class Moment:
    """An experiment at one point in time: its page, with waits, pace and queues asked for separately."""

    page: ExperimentPage
    why: Why | None = None
    """Waits of the roles; None for an ended experiment, or if the daemon did not answer."""
    pace: Pace | None = None
    """Training pace; None with fewer than two steps since the start or the last resume."""
    queues: tuple[QueueState, ...] = ()
    """The experiment's task queues; none once it has ended."""


def moment_of(client: Client, page: ExperimentPage) -> Moment:
    """Returns the page together with waits, pace and queues, requested now; missing answers are left out.

    Raises UnreachableError and WaitTimeoutError.
    """
    summary = page.experiment.summary
    if summary.state in ENDED:
        return Moment(page)
    try:
        why = client.ask(experiments.why, name=summary.id).value
        steps = steps_before(client, summary.id, summary.step).value.items
        queues = client.ask(tasks.queues, name=summary.id).value.items if _has_queue(page.experiment.config) else []
    except (UnreachableError, WaitTimeoutError):
        raise
    except RftdError:  # an unreadable log
        return Moment(page)
    stage = next(
        (number for number, stage_row in enumerate(page.experiment.stages) if stage_row.name == summary.stage), None
    )
    stage_steps = [step for step in steps if step.stage == stage]
    pace = pace_of(stage_steps, since_ns=summary.state_ns if summary.state == "running" else 0)
    return Moment(page, why, pace, tuple(queues))


def _has_queue(config: dict[str, Any]) -> bool:
    """True if a file, or one of its stages, receives tasks during the run."""
    node: Any = config
    for name in ("buffer", "explorer_input", "taskset", "storage_type"):
        node = node.get(name) if isinstance(node, dict) else None
    stages = config.get("stages")
    below = any(_has_queue(stage) for stage in stages if isinstance(stage, dict)) if isinstance(stages, list) else False
    return node == "queue" or below


def steps_before(client: Client, id: str, step: int) -> Answer[history.StepList]:
    """Returns the newest steps up to this one. Raises NotFoundError."""
    return client.ask(history.steps, name=id, first=max(0, step - RECENT_STEPS), last=step, limit=RECENT_STEPS + 1)


def pace_of(steps: Sequence[StepRow], *, since_ns: int) -> Pace | None:
    """Returns the pace of the steps ended after `since_ns`, since nothing ran before; None with fewer than two."""
    ended = [step for step in steps if step.completed_ns >= since_ns and not step.inherited]
    if len(ended) < 2:
        return None
    span_s = (ended[-1].completed_ns - ended[0].completed_ns) / 1e9
    if span_s <= 0:
        return None
    tokens = sum(step.tokens for step in ended[1:])
    return Pace(span_s / (len(ended) - 1), tokens / span_s, ended[-1].completed_ns)
