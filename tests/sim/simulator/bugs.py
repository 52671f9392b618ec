"""Planted bugs, one for each of most promises: what the oracles must find, or they prove nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from rftd.storage.checkpoints import Staged, place_folder
from rftd.streams.backends.memory import MemoryLog
from rftd.streams.chain import Mark
from rftd.streams.envelope import Draft, Position
from rftd.streams.fencing import FenceView
from rftd.streams.folds.ledger import Ledger
from rftd.workers.dispatcher import leasing
from rftd.workers.dispatcher.dispatcher import Dispatcher
from rftd.workers.planner.planner import Planner
from rftd.workers.policies.hard_bound import HardBound
from rftd.workers.trainer import saving
from simulator.engines import SimTrainerEngine
from simulator.loop import PROCESS
from simulator.scenario import Mode


@dataclass(frozen=True)
class Bug:
    """One way to break the product."""

    name: str
    found_by: str
    """How a failure that it causes begins."""
    plant: Callable[[], Any]
    """A context manager: the bug is there inside of it."""
    mode: Mode = "swarm"
    within_seeds: int = 60


def _admit_all() -> Any:
    admit = FenceView.admit

    def admitting(self: FenceView, partition: Any, head: Any, event: Any) -> bool:
        return admit(self, partition, head, event) or bool(head.role)

    return mock.patch.object(FenceView, "admit", admitting)


def _skip_training() -> Any:
    train = SimTrainerEngine.train

    def training(self: SimTrainerEngine, batch: Any) -> Any:
        before = self._state
        result = train(self, batch)
        if batch.step == 2 and PROCESS.get().start_s > 1.0:  # not in the first trainer: in one that takes up a history
            self._state = before
        return result

    return mock.patch.object(SimTrainerEngine, "train", training)


def _skip_a_group() -> Any:
    first = leasing._first

    def leaping(state: Any, stage: Any, worker: Any, sequence: int, version: int) -> Any:
        return first(state, stage, worker, sequence + (sequence > 0), version)

    return mock.patch.object(leasing, "_first", leaping)


def _lose_a_tail() -> Any:
    append = MemoryLog.append

    async def forgetting(self: MemoryLog, drafts: Sequence[Draft]) -> list[Position]:
        positions = await append(self, drafts)
        partition = positions[-1].partition
        records = self._records[partition]
        if partition.stream == "rftd.experiences" and len(records) == 3:
            self._places.pop(drafts[-1].id.bytes, None)
            lost = records.pop()
            self._tail.advance((), {partition: Mark(lost.offset, records[-1].chain)})
        return positions

    return mock.patch.object(MemoryLog, "append", forgetting)


def _count_again() -> Any:
    return mock.patch.object(Ledger, "_first", lambda _self, _id: True)


def _announce_without_files() -> Any:
    def placing(staged: Staged, folder: Path) -> None:
        place_folder(staged, folder)
        (folder / staged.files[0].path).unlink()

    return mock.patch.object(saving, "place_folder", placing)


def _never_expire() -> Any:
    return mock.patch.object(Dispatcher, "_expire", lambda _self, _over, _now_s: iter(()))


def _stall() -> Any:
    decide = Planner.decide

    def deciding(self: Planner, positions: Any, now_ns: int) -> Any:
        return () if self._state.spine.planned >= 2 else decide(self, positions, now_ns)

    return mock.patch.object(Planner, "decide", deciding)


def _keep_what_is_stale() -> Any:
    return mock.patch.object(HardBound, "evict", lambda _self, _view: ())


BUGS = (
    Bug("a fence admits all", "fenced", _admit_all, mode="zombies"),
    Bug("a trainer skips a plan when it takes the history up", "recomputed", _skip_training),
    Bug("the dispatcher skips a group", "verify: no-task-skipped", _skip_a_group),
    Bug("the log loses an acknowledged tail", "acknowledged", _lose_a_tail),
    Bug("a repetition counts again", "confluent", _count_again),
    Bug("a checkpoint is announced and a file of it is not there", "whole", _announce_without_files),
    Bug("a lease is never given out again", "liveness", _never_expire),
    Bug("the planner stalls", "liveness", _stall),
    Bug("stale experiences are trained", "verify: staleness-bounded", _keep_what_is_stale),
)
