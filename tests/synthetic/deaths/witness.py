"""A client of the log that remembers what was acknowledged to it, over every death of the daemon."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import UUID

from rftd.ops.clock import SystemClock
from rftd.ops.errors import RftdError, UnreachableError
from rftd.ops.ids import SystemIds
from rftd.streams.events.worker import Heartbeat
from rftd.streams.kafka.log import KafkaLog
from rftd.streams.kafka.settings import KafkaSettings
from rftd.streams.log.codec import Writer, decode_head
from rftd.streams.log.envelope import Draft, Position
from rftd.streams.log.log import EventLog
from rftd.streams.sqlite.socket.client import SocketLog

PAUSE_S = 0.02
GRACE_S = 120.0


class Witness:
    """Appends heartbeats of a worker of no experiment while the block runs: they touch nothing and are never folded."""

    def __init__(self, log: Path | KafkaSettings, seed: int = 0) -> None:
        """`log`: the socket of a daemon, or a cluster."""
        self.acknowledged: dict[UUID, Position] = {}
        self.failure: BaseException | None = None
        self._log = log
        self._chance = random.Random(seed)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="witness", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join(GRACE_S + 10.0)

    async def lost(self, log: EventLog) -> list[Position]:
        """Acknowledged positions at which another record is, or none."""
        found: dict[UUID, Position] = {}
        for partition in {place.partition for place in self.acknowledged.values()}:
            offset = 0
            while records := await log.read(partition, offset):
                found |= {decode_head(each).id: Position(partition, each.offset) for each in records}
                offset = records[-1].offset + 1
        return [place for id, place in self.acknowledged.items() if found.get(id) != place]

    def _run(self) -> None:
        try:
            asyncio.run(self._append())
        except RftdError as error:
            self.failure = error

    async def _append(self) -> None:
        clock = SystemClock()
        ids = SystemIds(clock)
        worker, nobody = ids.new(), ids.new()
        writer = Writer(source="witness", clock=clock, ids=ids)
        log: EventLog
        if isinstance(self._log, Path):
            log = await SocketLog.connect(self._log, grace_s=GRACE_S)
        else:
            log = await KafkaLog.open(self._log, clock=clock, ids=ids)
        try:
            while not self._stopping.is_set():
                beat = Heartbeat(worker=worker, role="witness", slot=-1, state="busy")
                drafts = [writer.draft(beat, experiment=nobody) for _ in range(self._chance.randint(1, 8))]
                for draft, place in zip(drafts, await self._insist(log, drafts), strict=True):
                    self.acknowledged[draft.id] = place
                await asyncio.sleep(self._chance.uniform(0, 2 * PAUSE_S))
        finally:
            await log.close()

    async def _insist(self, log: EventLog, drafts: list[Draft]) -> list[Position]:
        """An append as the roles do it: the same drafts until they are in. A socket has its own patience."""
        while True:
            try:
                return await log.append(drafts)
            except UnreachableError:
                if isinstance(self._log, Path) or self._stopping.is_set():
                    raise
