"""`mode: bench`: held-out tasksets are answered once, by a model or by a service that somebody else runs."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from synthetic.daemon.fork_desk import EXPERIMENT, ForkDesk
from synthetic.until import until

from rftd.daemon.config.loading import load_text
from rftd.ops import faults
from rftd.ops.errors import ConflictError
from rftd.streams.events.experience import EvalScored
from rftd.streams.events.experiment import ExperimentSubmitted
from rftd.streams.events.step import EvalCompleted
from rftd.streams.folds.spine import Status
from rftd.streams.log.codec import decode
from rftd.streams.log.envelope import Record
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import TOPICS, Partition

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("log", ["sqlite"], indirect=True)]

KEY = "sk-very-secret"
HELD = "buffer.explorer_input.eval_tasksets[0]"
BENCH = ("mode=bench", "stages=[]", "deterministic=false")
SERVICE = (
    *BENCH,
    "model={external_model: {enable: true, model_name: m-1}, max_response_tokens: 64}",
    "explorer.rollout_model={extra_engine_args: {retries: 1, wait_s: 5}}",
    "buffer.explorer_input.eval_tasksets=[{name: held, path: ./eval.jsonl, default_workflow_type: simple_workflow, "
    "default_reward_fn_type: exact_match_reward, format: {prompt_key: question, response_key: answer}}]",
)


class Service(ThreadingHTTPServer):
    """Adds, as a model of OpenAI's API, for whoever has the key."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.asked: list[dict[str, Any]] = []
        self.busy = 0
        """Questions that are still refused with 429."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Answers(BaseHTTPRequestHandler):
    server: Service

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(body)
        if self.headers["Authorization"] != f"Bearer {KEY}":
            return self._reply(401, {"error": {"message": f"wrong key {self.headers['Authorization']}"}})
        if self.server.busy > 0:
            self.server.busy -= 1
            return self._reply(429, {"error": {"message": "slowly"}})
        a, b = re.findall(r"\d+", body["messages"][-1]["content"])
        said = {"role": "assistant", "content": str(int(a) + int(b))}
        return self._reply(200, {"choices": [{"message": said, "finish_reason": "stop"}]})

    def _reply(self, status: int, value: Any) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def desk(tmp_path: Path, log: EventLog, clock, ids, fake_world) -> ForkDesk:
    return ForkDesk(tmp_path, log, fake_world.executor(log, clock, ids), clock, ids)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    with Service() as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        monkeypatch.setenv("OPENAI_BASE_URL", served.url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        try:
            yield served
        finally:
            served.shutdown()
            thread.join()


async def records(log: EventLog) -> list[Record]:
    found: list[Record] = []
    for name, topic in TOPICS.items():
        for number in range(topic.partitions):
            found += await log.read(Partition(name, number), 0, max_records=10_000)
    return found


async def contents(log: EventLog) -> list[bytes]:
    """Every record, as it lies in the log."""
    return [record.value for record in await records(log)]


async def events(log: EventLog) -> list[object]:
    return [decode(record).event for record in await records(log)]


async def scores(log: EventLog) -> list[EvalScored]:
    return [event for event in await events(log) if isinstance(event, EvalScored)]


async def checksums(desk: ForkDesk, experiment: UUID) -> dict[int, str]:
    """The checksum of the weights of each step."""
    return {step: done.checksum for step, done in (await desk.record(experiment)).surviving().items()}


async def test_a_model_is_measured_and_nothing_is_trained(desk: ForkDesk, fake_world) -> None:
    async with desk.open() as supervisor:
        experiment = await desk.submit(supervisor, *BENCH)
        await until(lambda: not supervisor.runs)
    state = await desk.completed(experiment)
    assert (state.spine.furthest, state.spine.planned, len(state.spine.evaluated)) == (0, 0, 1)
    (scored,) = await scores(desk.log)
    assert len(scored.rewards) == 12
    assert (await fake_world.verified(desk.log)).clean


async def test_an_experiment_without_a_record_of_its_own_has_nothing_to_measure(desk: ForkDesk) -> None:
    async with desk.open(slots=0) as supervisor:  # it waits for its turn
        await desk.hand_in(supervisor)
        with pytest.raises(ConflictError, match="sums has no checkpoint yet: nothing to measure"):
            await desk.hand_in(supervisor, *BENCH)


async def test_a_model_is_measured_again_under_a_name_with_a_time_stamp(desk: ForkDesk) -> None:
    async with desk.open() as supervisor:
        names = [(await desk.completed(await desk.submit(supervisor, *BENCH))).spine.spec.name for _ in range(2)]
    assert names[0] == "sums"
    assert re.fullmatch(r"sums_\d{14}", names[1])


async def test_every_checkpoint_of_an_experiment_is_measured_in_order(desk: ForkDesk, fake_world) -> None:
    async with desk.open() as supervisor:
        trained = await desk.submit(supervisor, "stages.1.buffer.total_steps=2", "explorer.eval_on_startup=false")
        last = await desk.hand_in(supervisor, *BENCH)
        await desk.completed(last)
        newest = await desk.submit(supervisor, *BENCH, "explorer.bench_on_latest_checkpoint=true")
    submitted = [record for record in await records(desk.log) if decode(record).head.type == "experiment.submitted"]
    ids = {decode(each).event.spec.name: decode(each).head.experiment for each in submitted}
    by_time = sorted(submitted, key=lambda record: decode(record).head.time_ns)
    assert [decode(each).event.spec.name for each in by_time] == [
        "sums",
        *(f"sums_bench_{step}" for step in (0, 2, 4, 6)),
        "sums_bench_6-2",
    ]
    assert (ids["sums_bench_6"], ids["sums_bench_6-2"]) == (last, newest)
    base = min((await desk.state(trained)).weights.published.items())[1].step_checksum
    made = {0: base} | await checksums(desk, trained)
    for id, step in [(ids[f"sums_bench_{step}"], step) for step in (0, 2, 4, 6)] + [(newest, 6)]:
        state = await desk.completed(id)
        answers = [
            record.event
            for record in map(decode, await records(desk.log))
            if isinstance(record.event, EvalCompleted) and record.head.experiment == id
        ]
        assert [(each.version, each.rows) for each in answers] == [(step, 12)]
        published = [event for (version, _), event in state.weights.published.items() if version == step]
        assert {event.step_checksum for event in published} == {made[step]}
    report = await fake_world.verified(desk.log)
    assert report.clean, report.findings


async def test_benches_that_were_cut_off_in_between_are_taken_in_once(
    desk: ForkDesk, ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    appended: list[str] = []

    def dies_once(name: str) -> None:
        if name == "submission.before_append":
            appended.append(name)
            if len(appended) == 3:
                raise OSError("the daemon dies here")

    async with desk.open() as supervisor:
        nothing = (*BENCH, "explorer.bench_on_latest_checkpoint=true")
        with pytest.raises(ConflictError, match="has no checkpoint of an experiment in this log"):
            await desk.hand_in(supervisor, *nothing)
        await desk.submit(supervisor, "stages.1.buffer.total_steps=2")
        config = load_text(EXPERIMENT, "test.yaml", overrides=BENCH, environ={}, cwd=desk.folder).config
        spec = await supervisor.check(config)
        assert spec.warnings[-1].endswith("sums_bench_0, sums_bench_2, sums_bench_4, sums_bench_6")
        key = ids.new()
        monkeypatch.setattr(faults, "point", dies_once)
        with pytest.raises(OSError, match="dies here"):
            await supervisor.submit(config, request_id=key)
        accepted = await supervisor.submit(config, request_id=key)
        again = await supervisor.submit(config, request_id=key)
        assert (again.experiment, accepted.name) == (accepted.experiment, "sums_bench_6")
        await desk.completed(accepted.experiment)
    found = [decode(record) for record in await records(desk.log)]
    names = [each.event.spec.name for each in found if isinstance(each.event, ExperimentSubmitted)]
    assert sorted(set(names)) == ["sums", *(f"sums_bench_{step}" for step in (0, 2, 4, 6))]
    assert len({each.head.experiment for each in found if isinstance(each.event, ExperimentSubmitted)}) == 5


async def test_a_service_is_measured_and_its_key_stays_out_of_the_log(
    desk: ForkDesk, service: Service, fake_world
) -> None:
    service.busy = 2
    async with desk.open() as supervisor:
        experiment = await desk.submit(supervisor, *SERVICE)
        await until(lambda: not supervisor.runs)
    await desk.completed(experiment)
    (scored,) = await scores(desk.log)
    assert scored.rewards.view().tolist() == [1.0] * 12
    # No tokenizer is named, so the bytes of the answers count.
    assert scored.tokens.view().tolist() == [len(str(a + a % 10)) for a in range(12)]
    assert len(service.asked) == 14
    body = service.asked[0]
    assert (body["model"], body["max_tokens"]) == ("m-1", 64)
    assert [message["role"] for message in body["messages"]] == ["user"]
    assert (await fake_world.verified(desk.log)).clean
    assert not any(KEY.encode() in value or service.url.encode() in value for value in await contents(desk.log))


async def test_rows_of_a_busy_service_fail_once_the_budget_is_spent(desk: ForkDesk, service: Service) -> None:
    service.busy = 10**9
    async with desk.open() as supervisor:
        experiment = await desk.submit(supervisor, *SERVICE, "explorer.max_retry_times=0")
        await until(lambda: not supervisor.runs)
    await desk.completed(experiment)
    (scored,) = [event for event in await events(desk.log) if isinstance(event, EvalCompleted)]
    assert (scored.score, scored.metrics["failed_rows"]) == (0.0, 12.0)
    assert len(service.asked) == 24


async def test_a_refused_key_is_named_and_never_shown(
    desk: ForkDesk, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-another")
    async with desk.open() as supervisor:
        experiment = await desk.submit(supervisor, *SERVICE)
    state = await desk.state(experiment)
    assert state.spine.status is Status.FAILED
    assert "OPENAI_API_KEY" in state.spine.reason
    assert not await scores(desk.log)
    assert not any(b"sk-another" in value for value in await contents(desk.log))
