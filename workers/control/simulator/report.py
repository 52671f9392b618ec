"""Policies side by side on one system, and the synchronous modes on the same machines as a baseline."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from rftd.streams.spec.sections import Synchronizer
from rftd.streams.spec.spec import PolicySpec, StageSpec
from rftd.workers.control.simulator.outcome import SimulationOutcome
from rftd.workers.control.simulator.simulation import Simulation
from rftd.workers.control.simulator.system import LongTail, System

MOST_STEPS: Final = 30
"""Most steps simulated: all synchronous steps are alike, so 30 give the rate to about one per cent."""
_TRIAL_BATCHES: Final = 4
"""Number of batches by which a split of the units is tried."""


class Synchronous(msgspec.Struct, frozen=True, kw_only=True):
    """Outcomes of the modes that alternate between generating a batch and training it, never both at once."""

    colocated: SimulationOutcome
    """Mode with all units generating, then all units training."""
    disaggregated: SimulationOutcome
    """Mode with some units generating while the others wait, then the reverse; by the best split."""

    @property
    def best(self) -> SimulationOutcome:
        """Returns the faster of the two modes."""
        return max(self.colocated, self.disaggregated, key=lambda outcome: outcome.throughput_per_s)


def synchronous(stage: StageSpec, system: System, lengths: LongTail, *, steps: int, seed: int) -> Synchronous:
    """Returns both modes, for the batch and the groups of the stage, whatever the policy of the stage."""
    strict = msgspec.structs.replace(
        stage,
        policy=PolicySpec(max_staleness_versions=0, max_inflight_batches=1),
        synchronizer=Synchronizer(sync_method="checkpoint", sync_style="fixed", sync_interval=1, sync_offset=0),
    )
    steps = min(steps, MOST_STEPS)
    apart = _best_split(strict, system, lengths, seed)
    together = msgspec.structs.replace(system, colocated=True)
    return Synchronous(
        colocated=Simulation(strict, together, lengths, steps=steps, seed=seed).run(),
        disaggregated=Simulation(strict, apart, lengths, steps=steps, seed=seed).run(),
    )


def _best_split(stage: StageSpec, system: System, lengths: LongTail, seed: int) -> System:
    """Returns the split with the shortest step, by a trial of a few batches on each split."""
    batches = lengths.draw(np.random.default_rng(seed), _TRIAL_BATCHES * stage.train_batch_size)
    trials = np.split(batches, _TRIAL_BATCHES)

    def step_s(split: System) -> float:
        # A whole simulation of every split would take longer than all policies together.
        slots = split.rollout_units * split.slots
        return float(np.mean([_makespan_s(trial.tolist(), slots) for trial in trials])) + split.step_s

    return min((system.split(units) for units in range(1, system.units)), key=step_s)


def _makespan_s(durations_s: list[float], slots: int) -> float:
    """Returns the seconds until the last rollout ends, if each begins as soon as a slot is free."""
    ends = durations_s[:slots]
    heapq.heapify(ends)
    latest = max(ends)
    for duration_s in durations_s[slots:]:
        end_s = ends[0] + duration_s
        heapq.heapreplace(ends, end_s)
        latest = max(latest, end_s)
    return latest


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Figures printed by `rftd sim async`."""

    system: System
    """Simulated machines."""
    lengths: LongTail
    """Distribution of rollout durations."""
    mean_s: float
    """Mean duration of a rollout."""
    batch: int
    """Experiences of a training step."""
    repeat_times: int
    """Rollouts of a group."""
    seed: int
    """Seed of all drawn durations."""
    best_train_units: int
    """Training units of the split with the highest optimum."""
    best_optimum_per_s: float
    """Experiences per second of the best split without any waiting."""
    synchronous: Synchronous
    """Outcomes of the synchronous modes, as the baseline."""
    runs: tuple[SimulationOutcome, ...]
    """Outcomes of the policies, in the order of the options."""

    def speed_up(self, run: SimulationOutcome) -> float:
        """Returns the run's throughput divided by the throughput of the better synchronous mode."""
        return run.throughput_per_s / self.synchronous.best.throughput_per_s


def compare(stages: Sequence[StageSpec], system: System, lengths: LongTail, *, steps: int, seed: int) -> Report:
    """Returns a forecast of each stage; stages differ in the policy, and see equal lengths in equal order."""
    first = stages[0]
    best = system.best_split(first.train_batch_size, lengths.mean_s)
    return Report(
        system=system,
        lengths=lengths,
        mean_s=lengths.mean_s,
        batch=first.train_batch_size,
        repeat_times=first.algorithm.repeat_times,
        seed=seed,
        best_train_units=best.train_units,
        best_optimum_per_s=best.optimum_per_s(first.train_batch_size, lengths.mean_s),
        synchronous=synchronous(first, system, lengths, steps=steps, seed=seed),
        runs=tuple(Simulation(stage, system, lengths, steps=steps, seed=seed).run() for stage in stages),
    )
