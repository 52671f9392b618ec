"""Experiments as events from anywhere: a record of another program is carried out once, or refused by an event."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from base64 import b64encode
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic.servers.kept_spans import KeptSpans

from rftd.daemon.run import registry as registry_module
from rftd.daemon.run.requests.request_service import ROUTES, RequestService, requested_command
from rftd.daemon.run.supervisor.supervisor import Supervisor
from rftd.daemon.trust.allowances import Allowances
from rftd.ops import limits
from rftd.ops.clock import SystemClock
from rftd.ops.errors import RftdError
from rftd.ops.ids import NAMESPACE, SystemIds, derive
from rftd.ops.logs import logger
from rftd.ops.metrics import Metrics
from rftd.ops.tracing.tracer import Tracer
from rftd.storage.database.engine import open_database, sqlite_url
from rftd.storage.projector.projector import Projector
from rftd.streams.events.experiment import ExperimentCancelled, ExperimentRejected, Fence
from rftd.streams.folds import answered_requests
from rftd.streams.folds.answered_requests import AnsweredRequests, OpenRequest
from rftd.streams.folds.pieces import from_pieces, pieces_of
from rftd.streams.log.codec import Writer, decode, decode_as, decode_head
from rftd.streams.log.deadletters import DeadLetterBox, head_of
from rftd.streams.log.envelope import Draft, Head, Position
from rftd.streams.log.requests import cloud_event, request_in, structured
from rftd.streams.log.topics import EXPERIMENTS, REQUESTS, Partition
from rftd.streams.memory import MemoryLog
from rftd.streams.verify.checker import verify
from rftd.workers.devices.host import ANY_HOST
from rftd.workers.hosts.local import LocalExecutor

CLOCK = SystemClock()
IDS = SystemIds(CLOCK)
NOWHERE = LocalExecutor("unix:nowhere", host=lambda: ANY_HOST)
FILE = """
project: p
name: NAME
checkpoint_root_dir: FOLDER/c
algorithm: {algorithm_type: grpo, repeat_times: 4}
model: {model_path: FOLDER/m, max_model_len: 64, max_prompt_tokens: 32}
buffer:
  batch_size: 2
  total_steps: 5
  explorer_input:
    taskset:
      path: FOLDER/t.jsonl
      format: {prompt_type: raw, prompt_key: question, response_key: answer}
      default_workflow_type: simple_workflow
      default_reward_fn_type: exact_match_reward
explorer: {rollout_model: {engine_type: fake, engine_num: 1}}
trainer: {trainer_type: fake}
synchronizer: {sync_method: checkpoint}
"""


class Daemon:
    """What answers requests: a supervisor that nothing drives, and its desk; one that begins knows nothing."""

    def __init__(self, log: MemoryLog, tracer: Tracer | None = None) -> None:
        parts: Any = {"clock": CLOCK, "ids": IDS, "logger": logger(), "allowances": Allowances(roots=("/",))}
        self.supervisor = Supervisor(log, NOWHERE, owner=IDS.new(), **parts)
        self.metrics = Metrics(version="1")
        self.desk = RequestService(
            log,
            self.supervisor,
            self.supervisor.known,
            Writer(source="daemon", clock=CLOCK, ids=IDS),
            clock=CLOCK,
            logger=logger(),
            metrics=self.metrics,
            tracer=tracer,
        )

    async def look(self) -> None:
        """Begins, and answers everything that is open."""
        registry = await self.supervisor.known()
        await self.desk.resume(registry)
        assert await self.desk.answer(registry)

    def counted(self, type: str, outcome: str) -> float:
        return self.metrics.registry.get_sample_value("rftd_requests_total", {"type": type, "outcome": outcome}) or 0.0


class World:
    """A log, and whoever writes into it."""

    def __init__(self, log: MemoryLog, folder: Path) -> None:
        self.log = log
        self.folder = folder

    def file(self, name: str = "mine") -> str:
        return FILE.replace("FOLDER", str(self.folder)).replace("NAME", name)

    async def write(self, value: bytes, partition: int = 0) -> None:
        await self.log.append([Draft(Partition(REQUESTS, partition), IDS.new(), b"", value)])

    async def ask(self, type: str, id: str, *, partition: int = 0, **attributes: Any) -> None:
        await self.write(event(type, id, **attributes), partition)

    async def submit(self, id: str, name: str = "mine", *, partition: int = 0, **attributes: Any) -> None:
        yaml = {"datacontenttype": "application/yaml", "data": self.file(name)}
        await self.ask("rftd.experiment.submit", id, partition=partition, **{**yaml, **attributes})

    async def heads(self) -> list[Head]:
        """The envelopes of the events of experiments, by partition."""
        found = []
        for number in range(4):
            for record in await self.log.read(Partition(EXPERIMENTS, number), 0, max_records=10_000):
                head = head_of(record)
                if head is not None:
                    found.append(head)
        return found

    async def types(self) -> list[str]:
        """The types of these events."""
        return [head.type.removeprefix("experiment.") for head in await self.heads()]

    async def refusals(self) -> list[ExperimentRejected]:
        found = []
        for number in range(4):
            for record in await self.log.read(Partition(EXPERIMENTS, number), 0, max_records=10_000):
                if record.head and decode_head(record).type == "experiment.rejected":
                    found.append(decode_as(record, ExperimentRejected))
        return found


def event(type: str, id: str, **attributes: Any) -> bytes:
    return json.dumps({"specversion": "1.0", "type": type, "source": "/ci", "id": id, **attributes}).encode()


@pytest.fixture
async def world(tmp_path: Path, anyio_backend: str) -> AsyncIterator[World]:
    rows = [json.dumps({"question": f"{a}+1=", "answer": str(a + 1)}) for a in range(8)]
    (tmp_path / "t.jsonl").write_text("\n".join(rows))
    log = MemoryLog()
    yield World(log, tmp_path)
    await log.close()


@pytest.mark.anyio
async def test_an_experiment_is_submitted_once_and_its_life_is_changed(world: World) -> None:
    daemon = Daemon(world.log)
    await world.submit("1", partition=2)
    await world.submit("1", partition=2, time="2026-01-01T00:00:00Z")  # sent again by a client that was not answered
    await world.ask("rftd.experiment.prioritize", "2", subject="mine", data={"priority": 3})
    await world.ask("rftd.experiment.cancel", "3", subject="mine", data={"reason": "enough"})
    await daemon.look()
    entry = next(iter((await daemon.supervisor.known()).entries.values()))
    assert (entry.name, entry.spine.priority, str(entry.status), entry.spine.reason) == (
        "mine",
        3,
        "cancelled",
        "enough",
    )
    once = sorted(await world.types())
    assert once == ["accepted", "cancelled", "prioritized", "submitted"]
    assert [daemon.counted(name, "accepted") for name in ("submit", "prioritize", "cancel")] == [1, 1, 1]
    # Killed, with its folder lost as well: another daemon knows from the log alone what is answered.
    again = Daemon(world.log)
    await again.look()
    await world.submit("1", partition=1)
    await again.look()
    assert sorted(await world.types()) == once
    assert not (await again.supervisor.known()).requests.open


@pytest.mark.anyio
async def test_a_refusal_is_an_event_that_names_the_record_and_lasts(world: World) -> None:
    daemon = Daemon(world.log)
    await world.submit("1", name="mine")
    await world.submit("2", name="mine")  # its folder is in use
    await world.submit("1", name="other")  # the same id, and another body
    await world.ask("rftd.experiment.pause", "4", subject="mine")  # it is not running
    await world.ask("rftd.experiment.pause", "5", subject="nobody")
    await daemon.look()
    found = {each.request.id + each.code: each for each in await world.refusals() if each.request is not None}
    assert sorted(found) == ["1RFTD-CON-002", "2RFTD-CON-001", "4RFTD-CON-001", "5RFTD-NOF-001"]
    first = found["2RFTD-CON-001"]
    assert first.request is not None
    assert (first.request.place, first.request.source) == ("rftd.requests/0@1", "/ci")
    assert "cancel it, or choose a name" in first.reason
    assert daemon.counted("pause", "refused") == 2
    await world.ask("rftd.experiment.cancel", "6", subject="mine")
    await daemon.look()
    before = sorted(await world.types())
    await Daemon(world.log).look()
    assert sorted(await world.types()) == before, "what was refused is not taken in because its folder is free now"


@pytest.mark.anyio
async def test_an_answer_is_in_the_trace_of_whoever_asked(world: World) -> None:
    caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    sink = KeptSpans()
    daemon = Daemon(world.log, Tracer(sink, clock=CLOCK, random=Random(1), ratio=0.0))
    await world.submit("1", traceparent=caller)
    await world.ask("rftd.experiment.pause", "2", subject="mine", traceparent=caller[:-1] + "0")
    await world.ask("rftd.experiment.pause", "3", subject="mine", traceparent=["no", "text"])
    await daemon.look()
    accepted, refused = sink.spans
    assert {each.name for each in sink.spans} == {"process rftd.requests"}
    assert f"{accepted.context.trace_id:032x}-{accepted.parent_id:016x}" in caller
    assert (accepted.error, refused.error, refused.parent_id) == ("", "RFTD-CON-001", 0)
    heads = await world.heads()
    assert {head.traceparent for head in heads if head.type != "experiment.rejected"} == {accepted.context.traceparent}
    answers = [head.traceparent for head in heads if head.type == "experiment.rejected"]
    assert sorted(answers, key=str) == sorted([None, refused.context.traceparent], key=str)


@pytest.mark.anyio
async def test_what_is_open_at_a_kill_is_answered_by_the_next_daemon(world: World) -> None:
    """Also where the kill came between the two appends of a submission."""
    await world.submit("1")
    first = Daemon(world.log)
    with pytest.raises(asyncio.CancelledError):
        await cut_off(first, world)
    assert await world.types() == ["submitted"]
    await Daemon(world.log).look()
    await Daemon(world.log).look()
    assert sorted(await world.types()) == ["accepted", "submitted"]


async def cut_off(daemon: Daemon, world: World) -> None:
    """Ends the desk as soon as the submission is in the log."""
    append = world.log.append
    count = 0

    async def once(drafts: Any) -> Any:
        nonlocal count
        count += 1
        if count > 1:
            raise asyncio.CancelledError
        return await append(drafts)

    world.log.append = once  # type: ignore[method-assign]
    try:
        await daemon.look()
    finally:
        world.log.append = append  # type: ignore[method-assign]


@pytest.mark.anyio
async def test_records_that_are_no_experiment_stop_nothing(world: World, tmp_path: Path) -> None:
    daemon = Daemon(world.log)
    garbage = [b"", b"\xff\x00", b"null", b"[]", b"{}", b'{"hello": 1}', b'{"specversion":' + b"[" * 5000]
    strange = [
        event("rftd.experiment.submit", "s", specversion="0.3"),
        event("rftd.experiment.submit", "s", specversion=1.0),
        event("rftd.experiment.explode", "s"),
        event("order.placed", "s"),
        event("rftd.experiment.submit", ""),
        event("rftd.experiment.submit", "no data"),
        event("rftd.experiment.submit", "no map", data=[1, 2]),
        event("rftd.experiment.submit", "no config", data={"name": "x"}),
        event("rftd.experiment.submit", "no media", datacontenttype="text/xml", data="<a/>"),
        event("rftd.experiment.submit", "no yaml", datacontenttype="application/yaml", data="a: [b"),
        event("rftd.experiment.submit", "no text", datacontenttype="application/yaml", data={"a": 1}),
        event("rftd.experiment.submit", "no base64", data_base64="%%%"),
        event("rftd.experiment.submit", "both", data={}, data_base64="e30="),
        event("rftd.experiment.submit", "deep", data=json.loads("[" * 200 + "]" * 200)),
        event("rftd.experiment.submit", "long" * 1000),
        event("rftd.experiment.submit", "a secret", data={"config": {"model": {"api_key": "sk-very-secret-123"}}}),
        event("rftd.experiment.pause", "no subject"),
    ]
    for value in [*garbage, *strange]:
        await world.write(value, 1)
    await world.submit("whole", datacontenttype=None, data={"config": {"name": "${oc.env:HOME}"}})
    await world.submit("last", data=None, data_base64=b64encode(world.file().encode()).decode())
    await daemon.look()
    assert sorted(await world.types()) == sorted(["accepted", "submitted", *["rejected"] * (len(strange) + 1)])
    refused = await world.refusals()
    assert {each.request.place for each in refused if each.request} == {
        *(f"rftd.requests/1@{offset}" for offset in range(len(garbage), len(garbage) + len(strange))),
        "rftd.requests/0@0",
    }
    assert all(each.reason for each in refused)
    assert "sk-very-secret" not in repr(refused)
    # Of what is no request at all there are dead letters; requests are none, for they have their answers.
    engine = open_database(sqlite_url(tmp_path / "state.db"))
    box = DeadLetterBox(world.log, Writer(source="test", clock=CLOCK, ids=IDS), clock=CLOCK)
    projector = Projector(world.log, engine, clock=CLOCK, report=box.report)
    await projector.catch_up()
    assert projector.dead_records == len(garbage)
    await projector.close()
    await engine.dispose()
    report = await verify(world.log, chained=True)
    assert not report.findings
    assert len(report.dead_letters) == len(garbage)
    assert [each.state for each in report.experiments] == ["submitted"]


@pytest.mark.anyio
async def test_on_the_spine_a_request_is_a_dead_letter_and_nothing_is_done(world: World) -> None:
    daemon = Daemon(world.log)
    value = event("rftd.experiment.submit", "1", datacontenttype="application/yaml", data=world.file())
    await world.log.append([Draft(Partition(EXPERIMENTS, 1), IDS.new(), b"", value)])
    await daemon.look()
    assert await world.types() == []
    report = await verify(world.log, chained=True)
    assert [letter.place for letter in report.dead_letters] == ["rftd.experiments/1@0"]


@pytest.mark.anyio
async def test_an_event_among_the_requests_is_a_dead_letter(world: World) -> None:
    daemon = Daemon(world.log)
    await world.submit("1")
    await daemon.look()
    entry = next(iter((await daemon.supervisor.known()).entries.values()))
    writer = Writer(source="stranger", clock=CLOCK, ids=IDS)
    fence = Fence(role="controller", epoch=1, previous=0, owner=IDS.new())
    for forged, role, epoch in ((ExperimentCancelled(), "", 0), (fence, "controller", 1)):
        draft = writer.under(role=role, epoch=epoch).draft(forged, experiment=entry.id)
        await world.log.append([Draft(Partition(REQUESTS, 0), draft.id, draft.head, draft.value)])
    again = Daemon(world.log)
    await again.look()
    assert [str(each.status) for each in (await again.supervisor.known()).entries.values()] == ["queued"]
    report = await verify(world.log, chained=True)
    assert not report.findings
    assert [letter.place for letter in report.dead_letters] == ["rftd.requests/0@1", "rftd.requests/0@2"]


@pytest.mark.anyio
async def test_the_order_in_which_partitions_are_read_changes_nothing(world: World) -> None:
    daemon = Daemon(world.log)
    for number in range(4):
        await world.submit(str(number), name=f"n{number}", partition=number)
        await world.submit(f"again{number}", name=f"n{number}", partition=(number + 1) % 4)
    await daemon.look()
    kinds = sorted(await world.types())
    assert kinds == sorted([*["submitted", "accepted", "rejected"] * 4])
    for first in range(4):
        fresh = Daemon(world.log)
        registry = await fresh.supervisor.known()
        turned = type(registry.requests)()
        records = [
            record
            for number in range(8)
            for stream in ((EXPERIMENTS, REQUESTS)[(number + first) % 2],)
            for record in await world.log.read(Partition(stream, (first + number // 2) % 4), 0, max_records=1000)
        ]
        for record in records:
            asked = request_in(record)
            if asked is not None:
                turned.arrive(record, asked, registry.commands)
            else:
                turned.answer(decode(record), registry.commands)
        assert not turned.open
        assert not turned.early


async def pauses(world: World, first: int, last: int) -> None:
    """Requests that are refused, for nothing is of that name: each has an event of its own for an answer."""
    for number in range(first, last):
        await world.ask("rftd.experiment.pause", f"p{number}", subject="nobody", partition=number % 2)


@pytest.mark.anyio
@pytest.mark.parametrize("restarts", [False, True])
async def test_of_very_many_requests_few_are_remembered_and_each_is_answered_once(
    world: World, monkeypatch: pytest.MonkeyPatch, restarts: bool
) -> None:
    monkeypatch.setattr(limits, "OPEN_REQUESTS", 4)
    monkeypatch.setattr(registry_module, "_REQUESTS_PER_READ", 3)
    daemon = Daemon(world.log)
    await pauses(world, 0, 31)
    await world.submit("first")
    await pauses(world, 31, 40)
    await world.submit("first")  # sent again
    most_open = 0
    while True:
        known = await daemon.supervisor.known()
        most_open = max(most_open, len(known.requests.open))
        if not known.requests.open:
            break
        await daemon.look()
        daemon = Daemon(world.log) if restarts else daemon
    assert most_open == 8, "four in each of two partitions"
    assert not known.requests.behind
    assert Counter(await world.types()) == {"rejected": 40, "submitted": 1, "accepted": 1}
    answered = [rejected.request.id for rejected in await world.refusals() if rejected.request is not None]
    assert sorted(answered) == sorted(f"p{number}" for number in range(40))
    await pauses(world, 40, 42)
    await Daemon(world.log).look()
    assert len(await world.refusals()) == 42, "what comes later is taken in as before"


@pytest.mark.anyio
async def test_a_command_passes_the_tasks_before_it_and_tasks_keep_their_order(world: World) -> None:
    daemon = Daemon(world.log)
    await world.submit("mine")
    await daemon.look()
    carried: list[str] = []
    answer = daemon.desk._answer_event

    async def noted(request: OpenRequest, asked: Any, *, patient: bool) -> None:
        carried.append(asked.shown("id"))
        if carried == ["pause", "t0"]:  # while tasks are answered, another command arrives
            await world.ask("rftd.experiment.cancel", "cancel", subject="mine")
            await daemon.supervisor.known()
        await answer(request, asked, patient=patient)

    daemon.desk._answer_event = noted  # type: ignore[method-assign]
    for number in range(3):
        tasks = {"tasks": [{"question": "1+1=", "answer": "2"}]}
        await world.ask("rftd.experiment.add_tasks", f"t{number}", subject="mine", data=tasks)
    await world.ask("rftd.experiment.end_tasks", "end", subject="mine")
    await world.ask("rftd.experiment.pause", "pause", subject="mine")
    await daemon.look()
    assert carried == ["pause", "t0", "cancel", "t1", "t2", "end"]
    assert [str(entry.status) for entry in (await daemon.supervisor.known()).entries.values()] == ["cancelled"]
    assert not (await Daemon(world.log).supervisor.known()).requests.open
    assert not (await Daemon(world.log).supervisor.known()).requests.commands


def request_number(number: int) -> OpenRequest:
    key = derive(NAMESPACE, "request", number)
    return OpenRequest(Position(Partition(REQUESTS, number % 4), number), key, number.to_bytes(16))


def test_answered_requests_are_remembered_in_few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answered_requests, "UNPACKED", 64)
    requests = [request_number(number) for number in range(5000)]
    answered = AnsweredRequests()
    for request in requests:
        assert answered.first(request) is request
    tracemalloc.start()
    try:
        again = from_pieces(pieces_of(answered), AnsweredRequests)
        size_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size_bytes < len(requests) * 120
    for request in requests:
        repeated = msgspec.structs.replace(request, position=Position(Partition(REQUESTS, 0), 10**6), digest=bytes(16))
        assert again.first(repeated) == request
    assert again.get(derive(NAMESPACE, "another")) is None


EVENT = {
    "specversion": "1.0",
    "type": "rftd.experiment.submit",
    "source": "/ci",
    "id": "1",
    "subject": "mine",
    "datacontenttype": "application/yaml",
    "data": "name: a",
}
JSON = st.sampled_from([None, True, 1.5, -1, "", " ", "1.0", [], {}, ["a"], {"config": {}}, {"config": 1}]) | st.text()


def judged(value: bytes) -> None:
    asked = cloud_event(value)
    if asked is None:
        return
    assert len(asked.digest) == 16
    assert asked.key is None or isinstance(asked.key, UUID)
    try:
        requested_command(asked)
    except RftdError as error:
        assert str(error)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_request_or_none(value: bytes) -> None:
    judged(value)
    judged(structured({"specversion": "1.0", "type": "rftd.experiment.submit", "source": "a", "id": "b"}, value))


@given(
    st.dictionaries(st.sampled_from([*sorted(EVENT), "data_base64"]), JSON, max_size=4), st.sampled_from(sorted(ROUTES))
)
def test_any_attributes_are_a_request_or_refused(changes: dict[str, Any], kind: str) -> None:
    judged(json.dumps({**EVENT, "type": kind, **changes}).encode())


@given(st.binary(max_size=12), st.integers(0, 200))
def test_a_damaged_event_is_a_request_or_none(noise: bytes, at: int) -> None:
    whole = json.dumps(EVENT).encode()
    judged(whole[:at] + noise + whole[at + len(noise) :])
