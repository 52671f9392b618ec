"""`SimulationOutcome` holds the figures of one simulated policy."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from rftd.ops.two_samples import ks_test
from rftd.streams.folds.replay_buffer import BufferBooks
from rftd.streams.spec.spec import StageSpec
from rftd.workers.control.simulator.system import LongTail, System

WARM_UP_SHARE = 0.1
"""Fraction of the steps left out of rates and idle fractions: the first ones, while the system fills."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one training step, with totals since the beginning of the simulation."""

    step: int
    """Number of the step, from 1."""
    end_s: float
    """Virtual time of the end of the step, in seconds."""
    busy_slots_s: float
    """Slots times seconds with a rollout, since the beginning."""
    training_s: float
    """Seconds spent training since the beginning."""
    waiting: int
    """Experiences waiting to be planned at that moment."""
    items: int = 0
    """Number of experiences trained by the step."""
    staleness_mean_versions: float = 0.0
    """Mean staleness of the experiences trained by the step, in weight versions."""


class Window:
    """Records of one simulation's steps, staleness and lengths."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.staleness_versions: list[Sequence[int]] = []
        """Staleness of each experience of each step."""
        self.produced: list[float] = []
        """Lengths of experiences of closed groups, in seconds."""
        self.trained: list[float] = []
        """Lengths of experiences when they were trained for the first time."""

    def note(self, step: Step, *, staleness_versions: Sequence[int], lengths_s: Sequence[float]) -> None:
        """Adds the end of a step, with staleness and lengths of its experiences."""
        mean = float(np.mean(staleness_versions)) if staleness_versions else 0.0
        self.steps.append(msgspec.structs.replace(step, items=len(staleness_versions), staleness_mean_versions=mean))
        self.staleness_versions.append(staleness_versions)
        self.trained += lengths_s


class Staleness(msgspec.Struct, frozen=True, kw_only=True):
    """Staleness of trained experiences, in weight versions."""

    mean: float
    """Mean staleness after the warm-up."""
    p95: float
    """95th percentile of the staleness after the warm-up."""
    max: int
    """Largest staleness after the warm-up."""
    counts: dict[int, int]
    """Number of experiences by staleness."""
    over_bound: int
    """Trained experiences older than the policy's bound, the first steps included."""


class DropBias(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of trained lengths with generated lengths."""

    statistic: float
    """Statistic of the two-sample KS test."""
    p: float
    """P-value; below 0.05 the dropped rollouts differ from the rest."""
    generated_mean_s: float
    """Mean length of the rollouts of closed groups, in seconds."""
    trained_mean_s: float
    """Mean length of the experiences at their first training, in seconds."""


class SimulationOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one policy on one system. Rates and idle fractions count the steps after the warm-up."""

    policy: str
    """The policy's kind, and its own arguments if they are not the defaults."""
    bound: int
    """Staleness bound of the policy, in weight versions."""
    system: System
    """Simulated machines, with their division between generation and training."""
    steps: int
    """Number of simulated training steps."""
    virtual_s: float
    """Virtual time at the end of the last step, in seconds."""
    throughput_per_s: float
    """Experiences trained per second."""
    optimum_per_s: float
    """Throughput without any waiting on either side: `System.optimum_per_s` of this split."""
    of_optimum: float
    """Throughput divided by `optimum_per_s`."""
    staleness: Staleness
    """Staleness of the trained experiences."""
    idle_explorers: float
    """Fraction of the slots' time without a rollout."""
    idle_trainer: float
    """Fraction of the time in which the trainer trains no step."""
    produced: int
    """Number of experiences of closed groups, including the warm-up."""
    dropped: dict[str, float]
    """Retired fraction of the produced experiences, by reason."""
    drop_bias: DropBias
    """Comparison of trained lengths with generated lengths."""
    course: tuple[Step, ...]
    """All steps, including the warm-up."""
    lengths_generated_s: tuple[float, ...] = ()
    """101 evenly spaced quantiles of the generated lengths in seconds, from the shortest to the longest."""
    lengths_trained_s: tuple[float, ...] = ()
    """101 evenly spaced quantiles of the trained lengths in seconds, from the shortest to the longest."""


def outcome_of(
    window: Window, stage: StageSpec, system: System, lengths: LongTail, books: BufferBooks
) -> SimulationOutcome:
    """Returns the figures of a run: throughput, idle fractions, staleness, drops."""
    # Without at least the first step: it begins with empty slots, and takes as long as the longest rollouts.
    first = max(1, round(len(window.steps) * WARM_UP_SHARE)) if len(window.steps) > 1 else 0
    begin = window.steps[first - 1] if first else Step(step=0, end_s=0.0, busy_slots_s=0.0, training_s=0.0, waiting=0)
    end = window.steps[-1]
    measured = window.steps[first:]
    measured_s = end.end_s - begin.end_s
    throughput = sum(step.items for step in measured) / measured_s
    optimum = system.optimum_per_s(stage.train_batch_size, lengths.mean_s)
    slots = system.rollout_units * system.slots
    return SimulationOutcome(
        policy=" ".join([stage.policy.kind, *(f"{name}={argument}" for name, argument in stage.policy.args.items())]),
        bound=stage.policy.max_staleness_versions,
        system=system,
        steps=len(window.steps),
        virtual_s=end.end_s,
        throughput_per_s=throughput,
        optimum_per_s=optimum,
        of_optimum=throughput / optimum,
        staleness=_staleness(window.staleness_versions, first, stage.policy.max_staleness_versions),
        idle_explorers=1 - (end.busy_slots_s - begin.busy_slots_s) / (slots * measured_s),
        idle_trainer=1 - (end.training_s - begin.training_s) / measured_s,
        produced=books.produced,
        dropped={reason: count / books.produced for reason, count in sorted(books.retired.items())},
        drop_bias=_drop_bias(window),
        course=tuple(window.steps),
        lengths_generated_s=_quantiles(window.produced),
        lengths_trained_s=_quantiles(window.trained),
    )


def _staleness(batches: Sequence[Sequence[int]], first: int, bound: int) -> Staleness:
    """Returns mean, percentile and counts of staleness after the warm-up, and all experiences over the bound."""
    versions = np.concatenate([np.asarray(batch, dtype=np.int64) for batch in batches[first:]])
    distinct, counts = np.unique(versions, return_counts=True)
    return Staleness(
        mean=float(versions.mean()),
        p95=float(np.quantile(versions, 0.95)),
        max=int(versions.max()),
        counts=dict(zip(distinct.tolist(), counts.tolist(), strict=True)),
        # Of all steps, the warm-up too: a guaranteed bound is in force from the first step on.
        over_bound=sum(version > bound for batch in batches for version in batch),
    )


def _drop_bias(window: Window) -> DropBias:
    """Returns the test whether trained lengths differ from generated ones."""
    test = ks_test(window.produced, window.trained)
    return DropBias(
        statistic=test.statistic,
        p=test.p,
        generated_mean_s=float(np.mean(window.produced)),
        trained_mean_s=float(np.mean(window.trained)),
    )


def _quantiles(lengths: Sequence[float]) -> tuple[float, ...]:
    """Returns 101 evenly spaced quantiles of the lengths."""
    return tuple(np.quantile(lengths, np.linspace(0, 1, 101)).tolist())
