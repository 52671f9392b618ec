"""`Moment`: an experiment's page with what its roles wait for and how fast it trains, as far as the daemon tells."""

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
"""The newest steps whose pace is told: of more, an old stage or an old machine would be told too."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The time from the end of one step to that of the next, and the tokens that were trained in it."""

    step_s: float
    tokens_per_s: float
    last_ns: int
    """The end of the newest step."""


@dataclass(frozen=True, slots=True)
class Moment:
    """An experiment at one time."""

    page: ExperimentPage
    why: Why | None = None
    """None once it has ended, and where the daemon did not answer."""
    pace: Pace | None = None
    """None with fewer than two steps since it was started or resumed."""
    queues: tuple[QueueState, ...] = ()
    """Its queues of tasks; none once it has ended."""


def moment_of(client: Client, page: ExperimentPage) -> Moment:
    """The page with the rest, asked for now; what the daemon cannot tell is left out.

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
    except RftdError:  # a log that refuses to be read
        return Moment(page)
    stage = next((number for number, each in enumerate(page.experiment.stages) if each.name == summary.stage), None)
    own = [each for each in steps if each.stage == stage]
    pace = pace_of(own, since_ns=summary.state_ns if summary.state == "running" else 0)
    return Moment(page, why, pace, tuple(queues))


def _has_queue(config: dict[str, Any]) -> bool:
    """True if the tasks of a file, or of a stage of it, are added while it runs."""
    node: Any = config
    for name in ("buffer", "explorer_input", "taskset", "storage_type"):
        node = node.get(name) if isinstance(node, dict) else None
    stages = config.get("stages")
    below = any(_has_queue(stage) for stage in stages if isinstance(stage, dict)) if isinstance(stages, list) else False
    return node == "queue" or below


def steps_before(client: Client, id: str, step: int) -> Answer[history.StepList]:
    """The newest steps up to this one. Raises NotFoundError."""
    return client.ask(history.steps, name=id, first=max(0, step - RECENT_STEPS), last=step, limit=RECENT_STEPS + 1)


def pace_of(steps: Sequence[StepRow], *, since_ns: int) -> Pace | None:
    """The pace of the steps that ended after `since_ns`, for before it nothing ran; None of fewer than two."""
    ended = [step for step in steps if step.completed_ns >= since_ns and not step.inherited]
    if len(ended) < 2:
        return None
    span_s = (ended[-1].completed_ns - ended[0].completed_ns) / 1e9
    if span_s <= 0:
        return None
    tokens = sum(step.tokens for step in ended[1:])
    return Pace(span_s / (len(ended) - 1), tokens / span_s, ended[-1].completed_ns)
