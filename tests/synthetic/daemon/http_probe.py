"""The API of a daemon with data behind it, asked whatever its document allows and much that it forbids."""

from __future__ import annotations

import asyncio
import queue
import random
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, chdir, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

import schemathesis
from fastapi import FastAPI
from schemathesis import engine
from schemathesis.engine import events
from synthetic.log.garbage import garbage
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.daemon.http.api import services
from rftd.daemon.http.api.app import make_app
from rftd.daemon.http.api.doorkeeper import Doorkeeper
from rftd.daemon.http.views.route import NAME_CHARACTERS
from rftd.daemon.run.supervisor.supervisor import Supervisor
from rftd.daemon.trust.keyring import Keyring
from rftd.daemon.trust.quota import Quota
from rftd.daemon.trust.token_file import TokenFile
from rftd.ops.bound_socket import bind, url_of
from rftd.ops.clock import SystemClock
from rftd.ops.http_server import serving_http
from rftd.ops.ids import SystemIds
from rftd.ops.logs import logger
from rftd.storage.database.engine import open_database, sqlite_url
from rftd.storage.projector.projector import Projector
from rftd.streams.events.experiment import ExperimentPaused
from rftd.streams.log.chain import Heads
from rftd.streams.log.codec import Writer, decode_head
from rftd.streams.log.deadletters import DeadLetterBox
from rftd.streams.memory import MemoryLog
from rftd.workers.devices.host import ANY_HOST
from rftd.workers.hosts.local import LocalExecutor

KNOWN: Final = 0.8
"""Share of the requests that name something that is there."""
WAITS_S: Final = 0.02
"""Instead of the seconds for which a daemon waits for its tables, and a client for an event."""
REFUSED: Final = ["2xx", "400", "401", "403", "404", "409", "413", "422", "429", "503", "504", "507"]
"""A request that is as the document says may still be refused: an experiment file has more rules than a schema, and a
cursor is of one list."""


class Place(NamedTuple):
    """An API to be asked."""

    url: str
    names: list[str]
    """Experiments that are there."""
    headers: dict[str, str]
    """Those of a request with the role's token."""
    effects: dict[str, str]
    """What requests have appended that the role may not, once the API is closed."""


@dataclass
class Found:
    """The findings of one probe."""

    requests: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    """The misdeed of each operation, with a request that provokes it."""


@asynccontextmanager
async def served(folder: Path, role: str) -> AsyncIterator[Place]:
    """An API over runs that are complete, forked, paused and under way, and over dead letters; a token of the role.

    The commands are those of a daemon; nothing drives its experiments.
    """
    clock = SystemClock()
    ids = SystemIds(clock)
    recorder = Recorder()
    runs = [SyntheticRun(recorder, job_dir=str(folder / "small")).write()]
    runs.append(SyntheticRun(recorder, name="twig", seed=1, parent=runs[0].id, job_dir=str(folder / "twig")).write())
    for name in ("halted", "going"):
        run = SyntheticRun(recorder, name=name, seed=len(runs), job_dir=str(folder / name))
        run.begin()
        run.warm_up()
        run.explore()
        run.explore(failed=3)
        runs.append(run)
    recorder.write(ExperimentPaused(reason="asked"), runs[2].id)
    log, tables = MemoryLog(), open_database(sqlite_url(folder / "state.db"))
    for start in range(0, len(recorder.drafts), 100):
        await log.append(recorder.drafts[start : start + 100])
    await log.append(garbage(runs[0].id, ids, clock))
    writer = Writer(source="daemon/probe", clock=clock, ids=ids)
    projector = Projector(log, tables, clock=clock, report=DeadLetterBox(log, writer, clock=clock).report)
    await projector.catch_up()
    # Nothing is driven, so no worker is started.
    nobody = LocalExecutor("unix:nowhere", host=lambda: ANY_HOST)
    operations = Supervisor(log, nobody, owner=ids.new(), clock=clock, ids=ids, logger=logger(), archives=folder / "a")
    keyring = Keyring(folder, clock=clock, logger=logger())
    token = keyring.tokens.owner_token
    if role != "owner":
        many = Quota(submissions_per_hour=1_000_000, queued=1_000_000)
        token = TokenFile(folder).add("probe", role, created_ns=0, expires_ns=None, quota=many)
    keeper = Doorkeeper(keyring)
    app: FastAPI = make_app(operations=operations, log=log, engine=tables, projector=projector, doorkeeper=keeper)
    bound = bind("127.0.0.1", 0)
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(projector.run())
        async with serving_http(app, bound):
            names = ["small", "twig", "halted", "going", str(runs[0].id), "twig@1"]
            place = Place(url_of(bound), names, {"Authorization": f"Bearer {token}"}, {})
            before = await log.heads()
            yield place
        following.cancel()
        if role in ("read", "submit"):
            place.effects.update(
                await _effects(log, before, others=None if role == "read" else {run.id for run in runs})
            )
    await tables.dispose()


async def _effects(log: MemoryLog, before: Heads, *, others: set[UUID] | None) -> dict[str, str]:
    """The records since `before` that should not be: all of them, or those about experiments of `others`."""
    effects = {}
    for partition in await log.heads():
        offset = before[partition].next_offset if partition in before else 0
        while records := await log.read(partition, offset):
            offset = records[-1].offset + 1
            for head in map(decode_head, records):
                if others is None or head.experiment in others:
                    effects[f"effect: {head.type} of {head.experiment}"] = str(partition)
    return effects


@contextmanager
def beside(folder: Path, role: str) -> Iterator[Place]:
    """`served` runs on a thread of its own; the place is the one that it yields."""
    told: queue.SimpleQueue[Place | BaseException] = queue.SimpleQueue()
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        over = asyncio.Event()
        loops.append((asyncio.get_running_loop(), over))
        async with served(folder, role) as place:
            told.put(place)
            await over.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            told.put(error)
            raise

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    place = told.get(timeout=240)
    if isinstance(place, BaseException):
        raise place
    try:
        yield place
    finally:
        loop, over = loops[0]
        loop.call_soon_threadsafe(over.set)
        thread.join(30)
    if not told.empty():
        raise RuntimeError("the API failed while it closed") from told.get()  # type: ignore[misc]  # no place comes twice


def probed(*, seed: int | None, examples: int, phases: list[str], role: str = "owner") -> Found:
    """The findings of every check, in so many examples of each kind per operation; without a seed always the same."""
    read_timeout_s = services.READ_TIMEOUT_S
    services.READ_TIMEOUT_S = WAITS_S
    try:
        # An owner may name files: an export to a relative path is written into the folder that the process runs in.
        with tempfile.TemporaryDirectory() as folder, chdir(folder), beside(Path(folder), role) as place:
            found = _asked(_document(place, seed=seed, examples=examples, phases=phases))
        found.failures |= place.effects
        return found
    finally:
        services.READ_TIMEOUT_S = read_timeout_s


def _document(place: Place, *, seed: int | None, examples: int, phases: list[str]) -> Any:
    names = place.names
    schema = schemathesis.openapi.from_url(f"{place.url}/openapi.json", headers=place.headers)
    config = schema.config
    config.headers = place.headers
    config.seed = seed
    config.generation.update(max_examples=examples, deterministic=seed is None, database="none", no_shrink=True)
    config.phases.update(phases=phases)
    config.checks.positive_data_acceptance.expected_statuses = REFUSED
    ended = [name for name in names if name not in ("halted", "going")]

    @schema.hook
    def map_path_parameters(context: Any, parameters: Any) -> Any:
        chance = random.Random(str(parameters))
        if not parameters or len(str(parameters.get("name", ""))) not in range(1, NAME_CHARACTERS + 1):
            return parameters  # it is to be refused
        follows = context.operation.path.endswith("/stream")  # of one that goes on there would be no end
        if follows or chance.random() < KNOWN:
            return {**parameters, "name": chance.choice(ended if follows else names)}
        return parameters

    @schema.hook
    def map_query(_context: Any, query: Any) -> Any:
        waits = query.get("wait_s") if query else None
        if isinstance(waits, int | float) and 0 <= waits <= 30:
            return {**query, "wait_s": WAITS_S}
        return query

    return schema


def _asked(schema: Any) -> Found:
    found = Found()
    for event in engine.from_schema(schema).execute():
        if isinstance(event, events.ScenarioFinished):
            found.requests += len(event.recorder.interactions)
            for checks in event.recorder.checks.values():
                for check in checks:
                    if check.failure_info is not None:
                        failure = check.failure_info.failure
                        what = f"{event.recorder.label}: {failure.title}: {failure.message[:200]}"
                        found.failures.setdefault(what, check.failure_info.code_sample[:400])
        elif isinstance(event, events.NonFatalError):
            found.failures.setdefault(f"{event.label}: {event.value!r:.300}", "")
        elif isinstance(event, events.FatalError):
            found.failures.setdefault(f"the probe itself: {event.exception!r:.300}", "")
    return found
