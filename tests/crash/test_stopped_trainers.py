"""A trainer that stands still before any operation on files, until its successor is done, changes nothing of it."""

from __future__ import annotations

import asyncio
import io
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
import pytest
from synthetic.log.synthetic_run import spec_of

from rftd.ops.clock import SystemClock
from rftd.ops.errors import FencedError, RftdError
from rftd.ops.ids import SeededIds
from rftd.ops.logs import logger
from rftd.storage.files.checkpoints import misses_its_folder, verify
from rftd.streams.events.step import StepCompleted
from rftd.streams.folds.run_state import RunState
from rftd.streams.log.envelope import Decoded, Head
from rftd.streams.log.topics import CHECKPOINTS, Partition
from rftd.streams.spec.spec import ExperimentSpec, TrainerSpec
from rftd.workers.training.saving import Saver
from rftd.workers.training.tidying import tidy
from rftd.workers.weights import checkpoint
from rftd.workers.weights.checkpoint import CheckpointChannel
from rftd.workers.weights.tensor_bytes import TensorBytes

CALLS = ("mkdir", "rename", "replace", "unlink", "rmdir", "fsync", "listdir")
MOST = 400
STAGE_STEPS = (2, 4, 6)


class Shelf:
    """The log, as far as a trainer's files need it: who holds the role, and what was committed."""

    def __init__(self, folder: Path, ids: SeededIds) -> None:
        spec = spec_of("one", 60, str(folder))
        trainer = TrainerSpec(engine="fake", max_checkpoints_to_keep=1)
        stages = tuple(msgspec.structs.replace(stage, trainer=trainer) for stage in spec.stages)
        self.spec: ExperimentSpec = msgspec.structs.replace(spec, stages=stages)
        self.state, self.ids = RunState(ids.new()), ids
        self.owner = 0

    def fold(self, event: Any) -> None:
        head = Head(id=self.ids.new(), type="", version=1, experiment=self.state.experiment, source="", time_ns=0)
        self.state.apply(Decoded(Partition(CHECKPOINTS, 0), 0, head, event))


class Lease:
    """One epoch of the role; void once a later one was taken."""

    def __init__(self, shelf: Shelf, epoch: int) -> None:
        self.writer: Any = SimpleNamespace(draft=lambda event, experiment: event, epoch=epoch)
        self._shelf = shelf
        shelf.owner = epoch

    async def confirm(self) -> None:
        if self._shelf.owner != self.writer.epoch:
            raise FencedError("a newer owner")

    async def append(self, events: list[Any]) -> None:
        await self.confirm()
        for event in events:
            self._shelf.fold(event)


class Trainer:
    """What a trainer does to files: it takes up, publishes, and saves three checkpoints of which one stays."""

    def __init__(self, shelf: Shelf, epoch: int) -> None:
        self._shelf, self._epoch = shelf, epoch
        self.text = f"by {epoch}"
        self.published: list[Path] = []

    def save(self, folder: Path, *, hf: bool) -> None:
        (folder / "actor").mkdir()
        (folder / "actor" / "weights").write_text(self.text)

    def checksum(self) -> str:
        return self.text

    def sha256(self) -> str:
        return "0" * 64

    def run(self) -> None:
        asyncio.run(self._run())

    async def heads(self) -> dict[Partition, Any]:
        return {}

    async def _run(self) -> None:
        shelf, lease = self._shelf, Lease(self._shelf, self._epoch)
        log, weights = logger(), {"a": TensorBytes("uint8", (3,), memoryview(self.text.encode()[-3:]))}
        with ThreadPoolExecutor(1) as thread:
            await tidy(lease, shelf.state, shelf.spec, log)  # type: ignore[arg-type]
            saver = Saver(  # type: ignore[arg-type]
                self, lease, shelf.state, shelf.spec, log=self, thread=thread, clock=SystemClock()
            )
            channel = CheckpointChannel(Path(shelf.spec.job_dir) / "weights", self._epoch)
            for step in STAGE_STEPS:
                await lease.confirm()
                exported = await asyncio.to_thread(channel.publish, weights, version=step, generation=0)
                self.published.append(Path(exported.path))
                done = StepCompleted(
                    batch=shelf.ids.new(), step=step, stage=1, generation=self._epoch, checksum=self.text, items=1,
                    tokens=1, duration_s=0.0, metrics={},
                )  # fmt: skip
                await saver.save(done, step)


class Stop:
    """Holds one thread family before its n-th operation, until it is let go on."""

    def __init__(self, nth: int) -> None:
        self.stopped, self.go_on, self.over = threading.Event(), threading.Event(), threading.Event()
        self._left = nth
        self._mine: set[int] = set()

    def enter(self, work: Callable[[], None]) -> threading.Thread:
        """Runs `work` in a thread; what it starts is its own too, until the successor begins."""

        def run() -> None:
            with suppress(RftdError, OSError):
                work()
            self.over.set()
            self.stopped.set()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    @contextmanager
    def armed(self) -> Iterator[None]:
        def counted(call: Callable[..., Any]) -> Callable[..., Any]:
            def count(*arguments: Any, **options: Any) -> Any:
                if not self.stopped.is_set():
                    self._left -= 1
                    if self._left == 0:
                        self.stopped.set()
                        assert self.go_on.wait(60)
                return call(*arguments, **options)

            return count

        patches = [mock.patch.object(os, name, counted(getattr(os, name))) for name in CALLS]
        patches.append(mock.patch.object(io, "open", counted(io.open)))
        for each in patches:
            each.start()
        try:
            yield
        finally:
            for each in patches:
                each.stop()


@pytest.mark.slow
def test_a_trainer_stopped_before_any_operation_leaves_its_successors_files_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer stands still before its n-th operation (n = 1, 2, ...), another takes over and saves, it goes on."""

    class Clock:
        def now_ns(self) -> int:
            return 1_700_000_000_000_000_000

    monkeypatch.setattr(os, "fsync", lambda _file: None)
    ids = SeededIds(Clock(), 0)  # type: ignore[arg-type]
    for nth in range(1, MOST):
        shelf = Shelf(tmp_path / f"job-{nth}", ids)
        Trainer(shelf, 1).run()
        zombie, successor, stop = Trainer(shelf, 2), Trainer(shelf, 3), Stop(nth)
        with stop.armed():
            thread = stop.enter(zombie.run)
            assert stop.stopped.wait(60)
            finished = stop.over.is_set()
            if not finished:
                successor.run()
            stop.go_on.set()
            thread.join(60)
        assert not thread.is_alive()
        _check(shelf, zombie if finished else successor, nth)
        if finished:
            assert nth > 100
            return
    raise AssertionError("the work never ends")


def _check(shelf: Shelf, last: Trainer, nth: int) -> None:
    committed = list(shelf.state.checkpoints.values())
    assert committed, nth
    for event in committed:
        verify(Path(event.path), event.files)
        assert event.checksum == last.text, nth
        assert not misses_its_folder(Path(event.path).parent), nth
    for path in last.published:
        checkpoint.read(path)
