"""A program of somebody else's that submits an experiment and asks for more in transactions, some of them left open."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, Self

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from synthetic.servers.cluster_scene import ClusterScene
from synthetic.until import PATIENCE_S

from rftd.streams.kafka.partitions import Names
from rftd.streams.log.topics import REQUESTS, Partition

SOURCE: Final = "/foreign/sink"
_PAUSE_S: Final = 3.0
_GIVEN_UP_S: Final = 15.0
_TRANSACTION_MS: Final = 6_000
"""The time after which the broker ends a transaction that was left open."""


def id_of(priority: int) -> str:
    """The id of the request that sets this priority: each is asked for once."""
    return f"priority-{priority}"


class ForeignSink:
    """Submits an experiment, and writes requests about it while the block runs: committed are its prioritisations.

    What it takes back or leaves open would cancel the experiment. It is a thread with a loop of its own, which goes
    past the proxies and lives through the broker's deaths.
    """

    def __init__(
        self, scene: ClusterScene, name: str, file: str, chance: random.Random, strays: Sequence[Partition] = ()
    ) -> None:
        """`file` is the experiment's, with absolute paths.

        In `strays` it begins transactions and takes them back: their markers are all that remains there.
        """
        self.committed: list[str] = []
        """The ids of requests that surely were committed."""
        self.uncertain: list[str] = []
        """The ids of those in transactions whose end the broker did not confirm."""
        self.taken_back = 0
        self.opened = 0
        self._bootstrap = scene.cluster.broker.direct_bootstrap
        self._prefix = scene.prefix
        self._names = Names(scene.prefix)
        self._name = name
        self._file = file
        self._chance = chance
        self._strays = strays
        self._over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._write()))
        self._producers = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the foreign producer did not end"

    async def _write(self) -> None:
        async with self._producer() as producer, producer.transaction():
            await self._ask(producer, "submit", "file", data=self._file, datacontenttype="application/yaml")
        while not self._over.is_set():
            with suppress(KafkaError, OSError, TimeoutError):
                async with self._producer() as producer:
                    while await self._round(producer):
                        pass
            await asyncio.sleep(_PAUSE_S)

    @asynccontextmanager
    async def _producer(self) -> AsyncIterator[AIOKafkaProducer]:
        # A name of its own each time: another of the same name would end the transaction that was left open.
        self._producers += 1
        producer = AIOKafkaProducer(
            bootstrap_servers=self._bootstrap,
            transactional_id=f"{self._prefix}foreign-{self._producers}",
            transaction_timeout_ms=_TRANSACTION_MS,
            request_timeout_ms=5_000,
        )
        try:
            async with asyncio.timeout(_GIVEN_UP_S):
                await producer.start()
            yield producer
        finally:
            stopping = asyncio.ensure_future(producer.stop())
            await asyncio.wait([stopping], timeout=_GIVEN_UP_S)
            stopping.cancel()

    async def _round(self, producer: AIOKafkaProducer) -> bool:
        """Writes one transaction and pauses. False if it was left open, or if it was the last."""
        kind = self._chance.choices(("commit", "abort", "open"), (6, 3, 1))[0]
        async with asyncio.timeout(_GIVEN_UP_S):
            await producer.begin_transaction()
            if kind == "commit":
                await self._commit(producer)
            else:
                await self._take_back(producer, leave_open=kind == "open")
        await asyncio.sleep(_PAUSE_S)
        return kind != "open" and not self._over.is_set()

    async def _take_back(self, producer: AIOKafkaProducer, *, leave_open: bool) -> None:
        await self._ask(producer, "cancel", f"never-{self.taken_back + self.opened}", subject=self._name)
        if leave_open:
            self.opened += 1
            return
        if self._strays:
            stray = self._names.kafka(self._chance.choice(self._strays))
            await producer.send_and_wait(stray.topic, b"taken back", partition=stray.partition)
        await producer.abort_transaction()
        self.taken_back += 1

    async def _commit(self, producer: AIOKafkaProducer) -> None:
        priority = len(self.committed) + len(self.uncertain) + 1
        id = id_of(priority)
        self.uncertain.append(id)
        await self._ask(producer, "prioritize", id, subject=self._name, data={"priority": priority})
        await producer.commit_transaction()
        self.uncertain.remove(id)
        self.committed.append(id)

    async def _ask(self, producer: AIOKafkaProducer, verb: str, id: str, **attributes: object) -> None:
        identity = {"specversion": "1.0", "type": f"rftd.experiment.{verb}", "source": SOURCE, "id": id}
        requests = self._names.kafka(Partition(REQUESTS, 0))
        event = json.dumps({**identity, **attributes}).encode()
        await producer.send_and_wait(requests.topic, event, partition=requests.partition)
