"""Runs from a Python program: rows, commands, errors, repetition, and calls inside a running loop."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from synthetic.daemon.command_line import Served
from synthetic.daemon.stranger import HANGS_UP, Said, Stranger
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun
from synthetic.until import poll

import rftd
from rftd.daemon.cli import settings
from rftd.daemon.http.client import transport
from rftd.daemon.http.client.run import AsyncRunHandle, RunHandle
from rftd.daemon.http.views import commands, experiments
from rftd.daemon.http.views.commands import Receipt
from rftd.daemon.http.views.wire import encode
from rftd.ops.errors import ConfigError, NotFoundError, UnreachableError, UsageError, WaitTimeoutError

RECEIPT = encode(Receipt(id="0" * 8, event="e", position="p"))
BUSY = msgspec.json.encode({"type": "urn:x", "title": "t", "status": 503, "detail": "busy", "code": "RFTD-API-005"})


def test_a_program_reads_runs_steps_evaluations_and_experiences(served: Served) -> None:
    with rftd.Client(served.url) as client:
        assert [row.name for row in client.runs()] == ["small"]
        run = client.run("small")
        steps = run.steps()
        assert [row.step for row in steps] == list(range(1, len(steps) + 1))
        assert run.evals()[0].taskset
        every = run.experiences(limit=None)
        books = run.page().experiment.books
        assert len(every) == books.produced + books.open + books.late
        best = run.experiences(order="-reward", limit=1)[0]
        assert best.reward == max(row.reward for row in every if row.reward is not None)
        last = steps[-1].step
        planned = run.experiences(step=last, limit=None)
        assert {row.step for row in planned} == {last}
        assert run.experience(best.id).tokens
        assert run.why().waits
        assert run.moment().sentence
        assert run.drops()


def test_a_command_is_waited_for_as_long_as_a_daemon_works_on_it(
    stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A submission on a busy machine takes longer than any page: it is not given up before the daemon gives up."""
    monkeypatch.setattr(settings, "ANSWER_TIMEOUT_S", 0.2)
    given_up, hung = threading.Event(), threading.Event()
    stranger.answers = [Said(200, RECEIPT, after=given_up), Said(200, b"{}", after=hung)]
    with rftd.Client(stranger.url) as client, ThreadPoolExecutor(1) as pool:
        sent = pool.submit(client.send, commands.pause, commands.Reason(), name="small")
        poll(lambda: len(stranger.asked) == 1)
        with rftd.Client(stranger.url) as other, pytest.raises(WaitTimeoutError, match=r"no answer within 0\.2 s"):
            other.ask(experiments.listed)
        given_up.set()
        assert sent.result(60.0).value.position == "p"
    given_up.clear()
    stranger.answers = [Said(200, RECEIPT, after=hung)]
    with rftd.Client(stranger.url, timeout_s=0.3) as client, pytest.raises(WaitTimeoutError, match=r"within 0\.3 s"):
        client.send(commands.pause, commands.Reason(), name="small")
    hung.set()


def test_fields_that_differ_are_rows_with_a_column_for_each_run(served: Served) -> None:
    longer = SyntheticRun(Recorder(seed=7), name="longer", steps=5, seed=7, faults=False).write()
    asyncio.run(served.parts.log.append(longer.recorder.drafts))
    with rftd.Client(served.url) as client:
        poll(lambda: "longer" in {run.name for run in client.runs()})
        rows = client.diff(client.run("small"), "longer")
        [row] = [row for row in rows.to_dicts() if row["field"] == "stages[1].buffer.total_steps"]
        assert (row["small"], row["longer"]) == (3, 5)
        assert rows.columns == ["field", "small", "longer"]
        with pytest.raises(UsageError, match="named twice"):
            client.diff("small", "small")


def test_pages_of_a_list_are_joined_up_to_the_limit(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rftd.daemon.http.client.run._PAGE", 3)
    with rftd.Client(served.url) as client:
        run = client.run("small")
        every = run.experiences(order="oldest", limit=None)
        assert len({row.id for row in every}) == len(every) > 6
        assert [row.id for row in run.experiences(order="oldest", limit=7)] == [row.id for row in every][:7]


def test_calls_work_inside_a_running_loop(served: Served) -> None:
    async def cell() -> str:
        with rftd.Client(served.url) as client:
            return client.run("small").summary().name

    assert asyncio.run(cell()) == "small"


def offered(kind: type) -> dict[str, object]:
    """The public names of a class with the parameters of its methods; a property has none."""
    names = {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}
    return {
        name: [*inspect.signature(member).parameters] if callable(member) else None for name, member in names.items()
    }


@pytest.mark.parametrize(("kind", "asynchronous"), [(rftd.Client, rftd.AsyncClient), (RunHandle, AsyncRunHandle)])
def test_every_method_of_the_blocking_class_exists_in_the_asynchronous_one(kind: type, asynchronous: type) -> None:
    attributes = {"id", "name"} if kind is RunHandle else set()
    blocking = {name: parameters for name, parameters in offered(kind).items() if name not in attributes}
    assert blocking == {name: parameters for name, parameters in offered(asynchronous).items()}
    assert len(blocking) > 15


@pytest.mark.anyio
async def test_the_asynchronous_client_has_the_methods_of_the_blocking_one(served: Served) -> None:
    async with rftd.AsyncClient(served.url) as client:
        run = await client.run("small")
        steps, evals = await asyncio.gather(run.steps(), run.evals())
        assert steps
        assert evals
        with pytest.raises(UsageError):
            await client.compare(run, run)
        assert (await client.ask(experiments.summary, name="small")).value.name == "small"
        assert (await client.readiness()).clock_s
        assert "rftd_" in await client.metrics()
        rollouts = [rollout.id async for rollout in run.each_rollout(limit=3, batch=2)]
        assert rollouts == [row.id for row in await run.experiences(order="oldest", limit=3)]
        assert [page.value.experiment.summary.name async for page in client.pages("small")] == ["small"]


def test_an_error_has_the_code_and_the_fix_of_the_daemon(served: Served) -> None:
    with rftd.Client(served.url) as client:
        with pytest.raises(NotFoundError) as raised:
            client.run("smal")
        assert raised.value.code in str(raised.value)
        with pytest.raises(rftd.RftdError) as wrong:
            client.submit({"buffer": {"batch_sise": 3}})
        assert "batch_sise" in str(wrong.value)
        assert isinstance(wrong.value, ConfigError | UsageError)


def test_a_wait_ends_with_the_run_and_a_bounded_one_with_its_time(
    served: Served, capfd: pytest.CaptureFixture[str]
) -> None:
    with rftd.Client(served.url) as client:
        assert client.run("small").wait().state == "completed"
    assert "small  completed" in capfd.readouterr().err


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr(transport.time, "sleep", slept.append)
    return slept


def test_a_command_is_repeated_with_its_key_after_a_lost_connection(stranger: Stranger, pauses: list[float]) -> None:
    summary = encode_summary()
    stranger.answers = [Said(200, summary), Said(HANGS_UP), Said(503, BUSY, {"Retry-After": "3"}), Said(202, RECEIPT)]
    with rftd.Client(stranger.url, {}) as client:
        client.run("x").pause()
    keys = {headers["idempotency-key"] for method, _, headers in stranger.asked if method == "POST"}
    assert len(keys) == 1
    assert [method for method, _, _ in stranger.asked] == ["GET", "POST", "POST", "POST"]
    assert pauses[-1] == 3.0


def test_an_absent_daemon_is_an_error_at_once(pauses: list[float]) -> None:
    with rftd.Client("http://127.0.0.1:9", {}) as client, pytest.raises(UnreachableError):
        client.runs()
    assert pauses == []


def test_a_busy_daemon_is_given_up_after_the_patience(stranger: Stranger, pauses: list[float]) -> None:
    stranger.answers = [Said(503, BUSY, {"Retry-After": "60"})]
    with rftd.Client(stranger.url, {}, patience_s=5.0) as client, pytest.raises(rftd.RftdError, match="busy"):
        client.runs()
    assert pauses == []


def test_a_wait_beyond_its_time_says_that_the_run_goes_on(stranger: Stranger, pauses: list[float]) -> None:
    stranger.answers = [Said(200, encode_summary())]
    with rftd.Client(stranger.url, {}) as client, pytest.raises(WaitTimeoutError, match="has not ended within 0 s"):
        client.run("x").wait(timeout_s=0.0, show=False)


def test_a_token_is_sent_and_not_shown(stranger: Stranger) -> None:
    stranger.answers = [Said(200, encode_summary())]
    with rftd.Client(stranger.url, {}, token="s3cret") as client:
        run = client.run("x")
    assert stranger.asked[0][2]["authorization"] == "Bearer s3cret"
    assert "s3cret" not in f"{client!r}{run!r}{vars(client)}{vars(client._twin)}"


def encode_summary() -> bytes:
    from rftd.storage.queries.experiments import ExperimentSummary

    return encode(
        ExperimentSummary(
            id="00000000-0000-4000-8000-000000000001", name="x", project="p", state="running", reason=None, code=None,
            kept="here", kept_path=None, stage=None, step=1, total_steps=2, generation=0, reward_mean=None,
            staleness_p95=None, submitted_ns=0, started_ns=None, state_ns=0, labels={}, priority=0,
            queue_position=None, parent=None, forked_step=None,
        )
    )  # fmt: skip


def test_fields_are_overrides_in_three_spellings() -> None:
    from rftd.daemon.http.client.submission import overrides_of

    fields = {"name": "x", "buffer__batch_size": 8, "algorithm": {"optimizer": {"lr": 1e-6}}, "stages": [], "a.b": None}
    assert overrides_of(fields) == [
        'name="x"', "buffer.batch_size=8", "algorithm.optimizer.lr=1e-6", "stages=[]", "a.b=null",
    ]  # fmt: skip


def test_the_environment_of_a_program_is_not_changed(served: Served) -> None:
    before = dict(os.environ)
    with rftd.Client(served.url, token="t"):
        assert dict(os.environ) == before
