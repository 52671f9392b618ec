"""Policies side by side on one system, with what they are measured against."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rftd.streams.spec import StageSpec
from rftd.workers.control.simulator.long_tail import LongTail
from rftd.workers.control.simulator.outcome import SimulationOutcome
from rftd.workers.control.simulator.reference import Synchronous, synchronous
from rftd.workers.control.simulator.simulation import Simulation
from rftd.workers.control.simulator.system import System


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `rftd sim async` prints."""

    system: System
    lengths: LongTail
    mean_s: float
    """Of a rollout."""
    batch: int
    """Experiences of a training step."""
    repeat_times: int
    seed: int
    best_train_units: int
    """The split of the units with the highest optimum."""
    best_optimum_per_s: float
    synchronous: Synchronous
    runs: tuple[SimulationOutcome, ...]
    """One for each policy, in the order in which they were asked for."""

    def speed_up(self, run: SimulationOutcome) -> float:
        """Its throughput over that of the better synchronous mode."""
        return run.throughput_per_s / self.synchronous.best.throughput_per_s


def compare(stages: Sequence[StageSpec], system: System, lengths: LongTail, *, steps: int, seed: int) -> Report:
    """A forecast of each stage; they differ in their policy, and see the same lengths in the same order."""
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
