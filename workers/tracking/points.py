"""`PointFold`: the points of one experiment, computed from events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from rftd.streams.events import batch, checkpoint, experiment, step, weights
from rftd.streams.events.experiment import CheckpointChosen, StageStopped
from rftd.streams.events.registry import Event, definition_of
from rftd.streams.log import topics
from rftd.streams.log.envelope import Decoded
from rftd.workers.tracking.point import EXPLORER, TRAINER, Point, SampleSource

_ROLLOUT_FIGURE_PREFIXES: Final = (
    "critic/rewards",
    "critic/score",
    "prompt_length",
    "response_length",
    "reward",
    "rollout",
)
"""Name prefixes of a training step's figures about its rollouts."""
_REWARDS: Final = "critic/rewards/"
"""Beginning of the names of reward figures."""
_MOST_EARLY: Final = 256
"""Maximum number of versions with announcements stored ahead of their step."""
_ENDS: Final[Mapping[type[Event], str]] = {
    experiment.ExperimentCancelled: "cancelled",
    experiment.ExperimentCompleted: "completed",
    experiment.ExperimentFailed: "failed",
    experiment.ExperimentRejected: "rejected",
}
"""Word for the experiment's end, by event."""
_REMARKS: Final[Mapping[type[Event], Callable[[Any], tuple[str, str]]]] = {
    experiment.ExperimentStarted: lambda event: (TRAINER, "started"),
    experiment.ExperimentPaused: lambda event: (TRAINER, _reasoned("paused", event.cause, event.reason)),
    experiment.ExperimentResumed: lambda event: (TRAINER, _reasoned("resumed", "", event.reason)),
    experiment.ExperimentCancelled: lambda event: (TRAINER, _reasoned("cancelled", "", event.reason)),
    experiment.ExperimentCompleted: lambda event: (TRAINER, "completed"),
    experiment.ExperimentFailed: lambda event: (TRAINER, _reasoned("failed", event.code, event.reason)),
    experiment.StageStarted: lambda event: (TRAINER, f"stage {event.name} started"),
    experiment.ExperimentForked: lambda event: (TRAINER, f"forked from {event.parent} at step {event.at_step}"),
    step.GenerationStarted: lambda event: (
        TRAINER,
        f"generation {event.generation} trains from version {event.version}",
    ),
}
"""Functions computing role and text of a remark, by event."""
_FIGURES: Final = (step.StepCompleted, step.EvalCompleted, checkpoint.CheckpointCommitted, weights.WeightsPublished)
"""Events with figures or announcements."""
_DECIDED: Final = (CheckpointChosen, StageStopped)
"""Events decided by evaluations."""
_EVENTS: Final[tuple[type[Event], ...]] = (*_REMARKS, *_ENDS, *_FIGURES, *_DECIDED)
"""Events read by the fold."""
TYPES: Final = frozenset(definition_of(kind).name for kind in _EVENTS) | {"fence"}
"""The types of events that produce points; plans and leases need not be decoded."""
SAMPLED_TYPES: Final = TYPES | {definition_of(batch.BatchPlanned).name}
"""The types of events that produce points with samples."""
SAMPLES: Final = "samples"
"""The folder of tables in a tracker."""
_MOST_PLANS: Final = 64
"""Maximum number of stored plans."""
_MOST_MARKS: Final = 64
"""Maximum number of stored marks."""
_MARK_STEPS: Final = 8
"""Steps from one mark to the next."""


class Announcement(msgspec.Struct, frozen=True, array_like=True):
    """A remark on a checkpoint or publication, stored until its training step is read."""

    kind: str
    """Kind of the announcement: `checkpoint` or `weights`."""
    role: str
    """Run of the remark."""
    version: int
    """Weight version announced."""
    time_ns: int
    """Time of the event."""
    text: str
    """Text of the remark."""


class PointFold(msgspec.Struct, kw_only=True):
    """The state of the fold from events to points. A step trained again after a crash produces no second point."""

    single_run: bool = False
    """True if both roles share one run, so that a figure of the trainer is not repeated for the explorer."""
    samples: int = 0
    """Maximum rows of a table of samples; 0: no tables."""
    sample_interval: int = 1
    """The number of steps from one table of rollouts to the next."""
    plans: dict[bytes, SampleSource] = msgspec.field(default_factory=dict)
    """The selected samples of planned batches, by batch id, until the batch's training step is read."""
    marks: dict[int, SampleSource] = msgspec.field(default_factory=dict)
    """Log positions seen by the planner when it planned a step, by step: scores of that version's evaluations come
    later.
    """
    next_number: int = 0
    """Number of the next point."""
    rows: int = 0
    """The number of points with figures or a table."""
    furthest: int = 0
    """The last step with a point."""
    remarked: dict[str, int] = msgspec.field(default_factory=dict)
    """The last weight version with a remark, by kind of announcement."""
    early: dict[int, list[Announcement]] = msgspec.field(default_factory=dict)
    """Announcements of weights by version, until the training step of that version is read."""
    chosen: int = 0
    """The number of the last choice of a best checkpoint."""
    best: dict[int, int] = msgspec.field(default_factory=dict)
    """The version of each stage's best checkpoint."""
    stopped: int = -1
    """The last stage whose early end has a remark."""
    evaluated: set[bytes] = msgspec.field(default_factory=set)
    """Evaluations with a point."""
    ended: str = ""
    """The end of the experiment, in one word; empty before."""

    def apply(self, decoded: Decoded) -> list[Point]:
        """Advances the fold by one event that is not voided by a fence; returns the points produced by it."""
        event = decoded.event
        time_ns = decoded.head.time_ns
        if isinstance(event, step.StepCompleted):
            return self._step(event, time_ns)
        if isinstance(event, step.EvalCompleted):
            return self._evaluation(event, time_ns)
        if isinstance(event, batch.BatchPlanned):
            self._plan(event)
            return []
        if isinstance(event, checkpoint.CheckpointCommitted):
            return self._checkpoint(event, time_ns)
        if isinstance(event, weights.WeightsPublished):
            return self._publication(event, time_ns)
        if isinstance(event, _DECIDED):
            return self._decision(event, time_ns)
        if self.ended:
            return []  # an end is final
        self.ended = _ENDS.get(type(event), "")
        remark = _REMARKS.get(type(event))
        if remark is None:
            return []
        if isinstance(event, experiment.ExperimentForked):
            self.furthest = event.at_step
        role, text = remark(event)
        return [self._point(role, self.furthest, time_ns, remark=text)]

    def _step(self, event: step.StepCompleted, time_ns: int) -> list[Point]:
        """Returns the points of a step; empty for a repeated step."""
        if event.step <= self.furthest:
            return []
        self.furthest = event.step
        figures = dict(event.metrics)
        figures["perf/step_s"] = event.duration_s
        figures["perf/tokens"] = float(event.tokens)
        if event.duration_s:
            figures["perf/tokens_per_s"] = event.tokens / event.duration_s
        points = [self._point(TRAINER, event.step, time_ns, figures)]
        rollouts = _of_rollouts(event.metrics)
        if self.single_run:
            rollouts = {name: figure for name, figure in rollouts.items() if name not in figures}
        if rollouts:
            points.append(self._point(EXPLORER, event.step, time_ns, rollouts))
        source = self.plans.pop(event.batch.bytes, None)
        if source is not None:
            points.append(self._table("rollouts", event.step, time_ns, source))
        for announcement in self.early.pop(event.step, ()):
            points += self._remark(announcement)
        return points

    def _evaluation(self, event: step.EvalCompleted, time_ns: int) -> list[Point]:
        """Returns the points of a completed evaluation; empty for a repeated one."""
        if event.eval.bytes in self.evaluated:
            return []
        self.evaluated.add(event.eval.bytes)
        figures = {f"eval/{event.taskset}/{name}": figure for name, figure in event.metrics.items()}
        figures[f"eval/{event.taskset}/score"] = event.score
        figures[f"eval/{event.taskset}/rows"] = float(event.rows)
        points = [self._point(EXPLORER, event.version, time_ns, figures)]
        if self.samples:
            before = max((step for step in self.marks if step <= event.version), default=None)
            places = () if before is None else self.marks[before].places
            source = SampleSource(places, event.eval, event.rows, event.score)
            points.append(self._table(f"eval/{event.taskset}", event.version, time_ns, source))
        return points

    def _plan(self, event: batch.BatchPlanned) -> None:
        """Selects the rollouts of a batch to be shown after training: evenly spread, including the first."""
        if event.step % _MARK_STEPS == 0 and event.step not in self.marks:
            ends = [(at.partition, at.next_offset) for at in event.observed if at.stream == topics.EXPERIENCES]
            self.marks[event.step] = SampleSource(tuple(ends))
            if len(self.marks) > _MOST_MARKS:
                del self.marks[min(self.marks)]
        count = min(self.samples, len(event.experiences))
        if not count or event.step % self.sample_interval:
            return
        planned = [event.experiences[number * len(event.experiences) // count] for number in range(count)]
        self.plans[event.batch.bytes] = SampleSource(
            tuple((experience.partition, experience.offset) for experience in planned)
        )
        if len(self.plans) > _MOST_PLANS:
            del self.plans[next(iter(self.plans))]

    def _table(self, name: str, version: int, time_ns: int, source: SampleSource) -> Point:
        """Returns the point of a table whose rows are still to be read."""
        point = self._point(EXPLORER, version, time_ns)
        return msgspec.structs.replace(point, table=f"{SAMPLES}/{name}", source=source)

    def _decision(self, event: CheckpointChosen | StageStopped, time_ns: int) -> list[Point]:
        """Returns the remark on a decision of evaluations, once; for a choice only if the best checkpoint changed."""
        if isinstance(event, StageStopped):
            if event.stage <= self.stopped:
                return []
            self.stopped = event.stage
            text = f"stage ends early with version {event.last_version}: {event.reason}"
            return [self._point(TRAINER, self.furthest, time_ns, remark=text)]
        is_news = event.number > self.chosen and self.best.get(event.stage) != event.version
        self.chosen = max(self.chosen, event.number)
        if not is_news:
            return []
        self.best[event.stage] = event.version
        text = f"best checkpoint: version {event.version}, {event.figure} {event.value:.4g}"
        return [self._point(TRAINER, event.version, time_ns, remark=text)]

    def _checkpoint(self, event: checkpoint.CheckpointCommitted, time_ns: int) -> list[Point]:
        """Returns the remark on a saved checkpoint, if its step is known."""
        text = f"checkpoint global_step_{event.stage_step} saved"
        return self._announced(Announcement("checkpoint", TRAINER, event.step, time_ns, text))

    def _publication(self, event: weights.WeightsPublished, time_ns: int) -> list[Point]:
        """Returns the remark on published weights, if their step is known."""
        text = f"weights {event.version} published"
        return self._announced(Announcement("weights", EXPLORER, event.version, time_ns, text))

    def _announced(self, announcement: Announcement) -> list[Point]:
        """Returns the remark now, or keeps the announcement until its step is read."""
        if announcement.version <= self.furthest:
            return self._remark(announcement)
        # The streams are read concurrently: the step may come in a moment, or never.
        self.early.setdefault(announcement.version, []).append(announcement)
        while len(self.early) > _MOST_EARLY:
            del self.early[max(self.early)]
        return []

    def _remark(self, announcement: Announcement) -> list[Point]:
        """Returns the remark, unless already made for equally new weights: a trainer repeats announcements after a
        crash.
        """
        if announcement.version <= self.remarked.get(announcement.kind, 0):
            return []
        self.remarked[announcement.kind] = announcement.version
        return [self._point(announcement.role, announcement.version, announcement.time_ns, remark=announcement.text)]

    def _point(
        self, role: str, version: int, time_ns: int, figures: Mapping[str, float] | None = None, *, remark: str = ""
    ) -> Point:
        """Returns a numbered point."""
        number = self.next_number
        self.next_number += 1
        row = -1
        if not remark:
            row = self.rows
            self.rows += 1
        return Point(
            role=role,
            number=number,
            row=row,
            step=version,
            time_ns=time_ns,
            figures=dict(figures or {}),
            remark=remark,
        )


def _of_rollouts(metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns the figures of a step's rollouts, with the rewards also under the guide's names."""
    figures = {name: figure for name, figure in metrics.items() if name.startswith(_ROLLOUT_FIGURE_PREFIXES)}
    for name in [name for name in figures if name.startswith(_REWARDS)]:
        figures[f"rollout/reward/{name.removeprefix(_REWARDS)}"] = figures[name]
    return figures


def _reasoned(event_name: str, code: str, reason: str) -> str:
    """Returns the name of an event with code and reason, if any."""
    why = ": ".join(text for text in (code, reason) if text)
    return f"{event_name}: {why}" if why else event_name
