"""Well-formed records of a stranger on each topic: a run may end, and nothing outside of its folder is touched."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec
import pytest
from synthetic.docs.pages import ROOT

from rftd.daemon.cli.output.failure import leaves
from rftd.ops.clock import Clock
from rftd.ops.errors import CodecError, RftdError
from rftd.ops.ids import Ids
from rftd.streams.events.catalogue import definitions
from rftd.streams.events.experiment import Fence
from rftd.streams.events.registry import Definition, Event
from rftd.streams.events.weights import WeightsPublished
from rftd.streams.events.worker import WorkerStarted
from rftd.streams.folds.spine import Status
from rftd.streams.log import topics
from rftd.streams.log.codec import Writer
from rftd.streams.log.deadletters import decode_ours
from rftd.streams.log.envelope import Draft
from rftd.streams.log.log import EventLog
from rftd.streams.log.marked import moved
from rftd.streams.log.topics import Partition, may_hold
from rftd.streams.log.writers import holder_source
from rftd.streams.spec.spec import TrainerSpec

_GOLDEN: Final = ROOT / "tests" / "golden" / "events"


class Forger:
    """Writes on one stream about one experiment; `usurps`: he fences the roles first, else he plays those that are."""

    def __init__(
        self,
        log: EventLog,
        stream: str,
        experiment: UUID,
        victim: Path,
        address: str,
        *,
        usurps: bool,
        clock: Clock,
        ids: Ids,
    ) -> None:
        """`victim` is a folder that is not the experiment's, `address` a listener that nobody may ask."""
        self.written: Counter[str] = Counter()
        """Records by type."""
        self._log = log
        self._stream = stream
        self._experiment = experiment
        self._victim = victim
        self._address = address
        self._usurps = usurps
        self._clock = clock
        self._ids = ids
        self._read: dict[Partition, int] = {}
        self._strikes = 0
        self._newest: dict[type[Event], Event] = {}
        self._epochs: dict[str, int] = {}
        self._owners: dict[str, UUID] = {}
        """The newest owner of each role."""
        self._own: set[UUID] = set()
        """The ids of what he wrote himself."""

    async def strike(self) -> None:
        """Appends a record of each type of the stream, made of the newest real one and of one with any values."""
        await self._look()
        self._strikes += 1
        drafts = list(self._drafts())
        self._own.update(draft.id for draft in drafts)
        await self._log.append(drafts)

    async def _look(self) -> None:
        for partition in topics.EVENTS:
            offset = self._read.get(partition, 0)
            while records := await self._log.read(partition, offset):
                offset = records[-1].offset + 1
                for record in records:
                    try:
                        decoded = decode_ours(record)
                    except CodecError:
                        continue
                    if decoded.head.id in self._own:
                        continue
                    if isinstance(decoded.event, Fence):
                        self._owners[decoded.event.role] = decoded.event.owner
                    self._newest[type(decoded.event)] = decoded.event
                    role = decoded.head.role
                    self._epochs[role] = max(decoded.head.epoch, self._epochs.get(role, 0))
            self._read[partition] = offset

    def _drafts(self) -> Iterator[Draft]:
        for partition in (each for each in topics.EVERY_PARTITION if each.stream == self._stream):
            if not may_hold(partition, self._experiment):
                continue
            if self._usurps:
                yield from self._fences(partition)
            for definition in definitions():
                if definition.stream != self._stream or definition.anywhere:
                    continue
                for event in self._forgeries(definition):
                    self.written[definition.name] += 1
                    yield self._writer(definition.owner).draft(event, experiment=self._experiment, partition=partition)

    def _fences(self, partition: Partition) -> Iterator[Draft]:
        for role in ("controller", "planner", "dispatcher", "trainer"):
            epoch = self._epochs.get(role, 0)
            self._epochs[role] = epoch + 1
            self._owners[role] = self._ids.new()
            fence = Fence(role=role, epoch=epoch + 1, previous=epoch, owner=self._owners[role])
            yield self._writer(role).draft(fence, experiment=self._experiment, partition=partition)

    def _writer(self, role: str) -> Writer:
        epoch = self._epochs.get(role, 0) if role else 0
        source = holder_source(role, self._owners[role]) if role in self._owners else "stranger"
        return Writer(source=source, clock=self._clock, ids=self._ids, role=role, epoch=epoch)

    def _forgeries(self, definition: Definition) -> Iterator[Event]:
        newest = self._newest.get(definition.kind)
        if newest is not None:
            yield newest
            yield moved(newest, self._elsewhere)
            if isinstance(newest, WeightsPublished) and self._strikes % 2:
                # One of them at a time: of equal versions the last announcement counts.
                method = ("nccl", "memory", "service", "http")[self._strikes // 2 % 4]
                yield msgspec.structs.replace(newest, method=method, path=f"{self._address}/v1-g0")
            if isinstance(newest, WorkerStarted):
                yield msgspec.structs.replace(newest, worker=self._ids.new(), host=self._address)
        golden = json.loads((_GOLDEN / f"{definition.name}.v{definition.version}.json").read_text())
        yield moved(msgspec.msgpack.decode(bytes.fromhex(golden["value_hex"]), type=definition.kind), self._elsewhere)

    def _elsewhere(self, path: str) -> str:
        """The path of a whole copy in the victim's folder: what is believed there would be loaded, and removed."""
        place = self._victim / (Path(path).name or "global_step_1")
        source = Path(path)
        if source.is_dir() and not place.exists():
            shutil.copytree(source, place)
        return str(place)


STREAMS = sorted({partition.stream for partition in topics.EVENTS} | {topics.HEARTBEATS})
BUG = re.compile(r"\b(Key|Index|Type|Attribute|Assertion|Value|ZeroDivision|Overflow|Recursion)Error\b|RFTD-BUG")


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("usurps", [False, True], ids=["plays", "usurps"])
@pytest.mark.parametrize("stream", STREAMS)
async def test_a_forger_on_a_topic_reaches_nothing_outside_the_experiment(
    tmp_path: Path, log: EventLog, clock, ids, fake_world, stream: str, usurps: bool
) -> None:
    victim = tmp_path / "victim"
    for name in ("global_step_1", "v1-g0"):
        (victim / name).mkdir(parents=True)
        (victim / name / "canary").write_text("canary")
    asked: list[str] = []

    async def told(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(stream)
        writer.close()

    listener = await asyncio.start_server(told, "127.0.0.1", 0)
    address = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    executor = fake_world.executor(log, clock, ids)
    # Few versions and checkpoints are kept, so that forged ones come to be removed.
    trainer = TrainerSpec(engine="fake", engine_args={"step_s": 0.15}, save_interval=2, max_checkpoints_to_keep=1)
    spec = fake_world.spec(tmp_path, total_steps=30, trainer=trainer)
    run = await fake_world.run(log, spec, clock, ids, executor)
    experiment = run.state.experiment
    forger = Forger(log, stream, experiment, victim, address, usurps=usurps, clock=clock, ids=ids)
    copies: dict[Path, str] = {}

    async def forge() -> None:
        while True:
            await forger.strike()
            copies.update({path: _digest(path) for path in victim.rglob("*") if path.is_file() and path not in copies})
            await clock.sleep(0.3)

    forging = asyncio.ensure_future(forge())
    try:
        async with asyncio.timeout(8):
            await run.drive()
    except TimeoutError:
        pass  # it waits for something that the forger has taken away; a person sees for what
    except (RftdError, ExceptionGroup) as error:
        assert all(isinstance(leaf, RftdError) for leaf in leaves(error)), error
    finally:
        forging.cancel()
        await asyncio.gather(forging, return_exceptions=True)
        for handle in executor.handles:
            handle.kill()
        await asyncio.gather(*(handle.task for handle in executor.handles), return_exceptions=True)
        listener.close()
    assert forger.written
    assert not asked
    assert {path: _digest(path) for path in copies} == copies
    assert not BUG.search(run.state.spine.reason), run.state.spine.reason
    if run.state.spine.status is Status.FAILED:
        assert run.state.spine.code, "it says why"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "gone"
