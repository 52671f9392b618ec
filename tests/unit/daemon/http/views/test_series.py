"""Series: figures of several runs in buckets, as their steps tell them, and the marks beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from synthetic.daemon.daemon_parts import DaemonParts
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.ops.clock import ManualClock
from rftd.storage.database.engine import open_database
from rftd.storage.projector.projector import Projector
from rftd.storage.queries import courses, step_columns
from rftd.storage.queries.courses import course_of
from rftd.storage.queries.step_columns import StepColumns
from rftd.storage.queries.thinning import Grid
from rftd.streams.events.experiment import ExperimentPaused, ExperimentResumed, SignalLost
from rftd.streams.events.step import GenerationStarted, StepCompleted
from rftd.streams.figures.step_figures import REWARDS
from rftd.streams.memory import MemoryLog

pytestmark = pytest.mark.anyio


async def _series(client: httpx.AsyncClient, **query: Any) -> dict[str, Any]:
    answer = await client.get("/v1/series", params=query)
    assert answer.status_code == 200, answer.text
    page: dict[str, Any] = answer.json()
    return page


@pytest.mark.usefixtures("longer")
async def test_each_step_of_two_runs_has_the_figures_of_its_steps(client: httpx.AsyncClient) -> None:
    page = await _series(client, runs="small,longer", metrics="loss,tokens,held-out/held_out", points=300)
    assert page["at"] == [1, 2, 3, 4, 5, 6, 7]
    assert [run["name"] for run in page["runs"]] == ["small", "longer"]
    for run in page["runs"]:
        rows = (await client.get(f"/v1/experiments/{run['id']}/steps")).json()["items"]
        lines = {line["metric"]: line for line in page["lines"] if line["run"] == run["id"]}
        for row in rows:
            assert lines["loss"]["mean"][row["step"] - 1] == pytest.approx(row["metrics"]["loss"], rel=1e-5)
            assert lines["tokens"]["p50"][row["step"] - 1] == row["tokens"]
        assert lines["loss"]["count"] == [1] * len(rows) + [0] * (7 - len(rows))
        evals = (await client.get(f"/v1/experiments/{run['id']}/evals")).json()["items"]
        for row in evals:
            assert lines["held-out/held_out"]["max"][row["version"] - 1] == row["score"]
        assert set(run["metrics"]) >= {"loss", "reward", "tokens_per_s", "held-out/held_out", "workers/explorer"}


async def test_a_bucket_has_the_range_and_quantiles_of_its_steps(client: httpx.AsyncClient) -> None:
    page = await _series(client, runs="small", metrics="loss", points=2)
    assert page["at"] == [3, 6]
    [line] = page["lines"]
    first = [1.0, 0.5, 1 / 3]
    assert line["max"][0] == 1.0
    assert line["min"][0] == pytest.approx(1 / 3, rel=1e-5)
    assert line["mean"][0] == pytest.approx(sum(first) / 3, rel=1e-5)
    assert (line["p50"][0], line["count"]) == (0.5, [3, 2])


async def test_nan_is_null_and_counted(client: httpx.AsyncClient) -> None:
    [line] = (await _series(client, runs="small", metrics="bad"))["lines"]
    assert line["mean"] == [None] * 5
    assert (line["count"], line["nonfinite"]) == ([0] * 5, [1] * 5)


async def test_by_time_positions_are_seconds_since_the_start(client: httpx.AsyncClient) -> None:
    page = await _series(client, runs="small", metrics="loss", by="time", points=4)
    [line] = page["lines"]
    assert sum(line["count"]) == 5
    assert len(page["at"]) == 4
    page = await _series(client, runs="small", metrics="loss", by="tokens", points=300)
    rows = (await client.get("/v1/experiments/small/steps")).json()["items"]
    assert page["at"][-1] == sum(row["tokens"] for row in rows)


async def test_a_part_of_the_steps_is_drawn_alone(client: httpx.AsyncClient) -> None:
    page = await _series(client, runs="small", metrics="loss", first=2, last=3)
    assert page["at"] == [2, 3]
    assert page["lines"][0]["max"] == pytest.approx([0.5, 1 / 3], rel=1e-5)
    assert page["lines"][0]["min"] == pytest.approx([0.5, 1 / 3], rel=1e-5), "step 4 is outside"


async def test_marks_name_publications_checkpoints_and_states(client: httpx.AsyncClient, parts: DaemonParts) -> None:
    page = await _series(client, runs="small")
    changes = {(mark["change"], mark["at"]) for mark in page["marks"]}
    assert {("published", 3), ("published", 5), ("checkpoint", 2), ("completed", 5)} <= changes
    assert any(mark["change"] == "worker_lost" and "killed" in mark["text"] for mark in page["marks"])
    assert sum(mark["count"] for mark in page["marks"] if mark["change"] == "checkpoint") == 2
    run = SyntheticRun(Recorder(seed=9), name="held", seed=9).warmed_up()
    run.train()
    write = run.recorder.write
    write(ExperimentPaused(reason="lunch"), run.id, role="controller")
    write(ExperimentResumed(reason=""), run.id, role="controller")
    lost = SignalLost(cause="flat", reason="all rewards are 0", fix="look", step=3, stage=1, number=1)
    write(lost, run.id, role="controller")
    await parts.log.append(run.recorder.drafts)
    await parts.projector.catch_up()
    marks = (await _series(client, runs="held"))["marks"]
    texts = {mark["change"]: (mark["at"], mark["text"]) for mark in marks}
    assert texts["paused"] == (3, "lunch")
    assert texts["signal_lost"] == (3, "flat: all rewards are 0")


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({}, "name one to 32 experiments"),
        ({"runs": ",".join(f"r{number}" for number in range(1000))}, "name one to 32 experiments"),
        ({"runs": "nope"}, "nope"),
        ({"runs": "small", "metrics": "los"}, "did you mean loss"),
        ({"runs": "small", "metrics": ",".join(map(str, range(33)))}, "at most 32 figures"),
        ({"runs": "small", "first": 4, "last": 2}, "give a last position after the first"),
        ({"runs": "small", "points": 0}, "greater than or equal to 1"),
        ({"runs": "small", "first": "nan"}, "finite"),
    ],
)
async def test_an_impossible_series_is_refused(client: httpx.AsyncClient, query: dict[str, Any], words: str) -> None:
    answer = await client.get("/v1/series", params=query)
    assert answer.status_code in (404, 422), answer.text
    assert words in answer.text


async def test_a_run_without_a_step_has_an_empty_line(client: httpx.AsyncClient, parts: DaemonParts) -> None:
    run = SyntheticRun(Recorder(seed=8), name="new", seed=8)
    run.begin()
    await parts.log.append(run.recorder.drafts)
    await parts.projector.catch_up()
    page = await _series(client, runs="new")
    assert (page["at"], page["lines"], page["runs"][0]["last_step"]) == ([], [], None)
    page = await _series(client, runs="new,small", metrics="loss")
    assert page["lines"][0]["mean"] == [None] * 5


@pytest.fixture
async def tables(either_url: str) -> Any:
    """A log with its tables in a database of each kind, and a run whose rewards are recorded."""
    engine, log = open_database(either_url), MemoryLog()
    projector = Projector(log, engine, clock=ManualClock())
    yield engine, log, projector
    await projector.close()
    await engine.dispose()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.servers)])
def either_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'either.db'}"
    return str(request.getfixturevalue("postgres_url"))


async def _loss(engine: AsyncEngine, columns: StepColumns, run: SyntheticRun) -> list[float]:
    async with engine.connect() as connection:
        table = await columns.of(connection, run.id, ("loss",))
    return list(zip(table.step.tolist(), table.figures["loss"].tolist(), strict=True))


async def test_cached_columns_grow_and_follow_a_new_generation(tables: Any) -> None:
    engine, log, projector = tables
    run, columns, written = SyntheticRun(Recorder(), steps=4, faults=False), StepColumns(), 0
    run.warmed_up()

    async def check() -> None:
        nonlocal written
        await log.append(run.recorder.drafts[written:])
        written = len(run.recorder.drafts)
        await projector.catch_up()
        assert await _loss(engine, columns, run) == await _loss(engine, StepColumns(), run)

    await check()
    run.explore()
    run.train()
    await check()
    run.explore()
    run.explore()
    run.train()
    await check()
    run.recorder.write(GenerationStarted(generation=1, version=3), run.id, role="trainer")
    again = StepCompleted(
        batch=run.batches[-1],
        step=4,
        stage=1,
        generation=1,
        checksum="c",
        items=8,
        tokens=8,
        duration_s=1.0,
        metrics={"loss": 77.0},
    )
    run.recorder.write(again, run.id, role="trainer")
    await check()
    assert (await _loss(engine, columns, run))[3] == (4, 77.0)


async def test_reward_bands_are_those_of_the_rollouts(tables: Any) -> None:
    engine, log, projector = tables
    names = {"mean": 0.5, "min": -1.0, "max": 2.0, "p10": 0.0, "p50": 0.25, "p90": 1.5}
    figures = {f"{REWARDS}/{name}": figure for name, figure in names.items()}
    run = SyntheticRun(Recorder(), figures=figures).write()
    await log.append(run.recorder.drafts)
    await projector.catch_up()
    async with engine.connect() as connection:
        wanted = ("reward", "weights/load_s", "workers/explorer")
        course = await course_of(connection, StepColumns(), run.id, wanted, "step")
    bands = course.bands("reward", Grid.over(1, 5, 1, whole=True))
    assert (bands.low[0], bands.high[0], bands.mean[0]) == (-1.0, 2.0, 0.5)
    assert [quantile[0] for quantile in bands.quantiles] == [0.0, 0.25, 1.5]
    assert course.bands("weights/load_s", Grid.over(1, 5, 1, whole=True)).mean[0] == pytest.approx(0.1)
    assert course.bands("workers/explorer", Grid.over(1, 1, 1, whole=True)).mean[0] == 2
    assert {mark.change for mark in course.marks} >= {"published", "checkpoint", "running", "completed"}


async def test_too_many_numbers_are_dropped_and_read_again(tables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, log, projector = tables
    monkeypatch.setattr(step_columns, "KEPT_NUMBERS", 20)
    recorder, columns = Recorder(), StepColumns()
    runs = [SyntheticRun(recorder, name=name, faults=False).write() for name in ("a", "b")]
    await log.append(recorder.drafts)
    await projector.catch_up()
    for run in (*runs, *runs):
        assert await _loss(engine, columns, run) == await _loss(engine, StepColumns(), run)
    assert courses.REWARD == "reward"
