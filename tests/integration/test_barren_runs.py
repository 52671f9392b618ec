"""Ten runs that cannot learn, each for another reason, at once: get, why, an event and the alert's metric name each."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from rich.console import Console
from synthetic.daemon.fork_desk import ForkDesk
from synthetic.daemon.third_party import install

from rftd.daemon.cli.verbs.get import render
from rftd.daemon.http.views.experiments import page_of
from rftd.daemon.observe.metrics_feed import MetricsFeed
from rftd.daemon.observe.metrics_scrape import Scrape
from rftd.daemon.run.supervisor.supervisor import Supervisor
from rftd.ops.clock import SystemClock
from rftd.ops.metrics import Metrics
from rftd.storage.database.engine import open_database, sqlite_url
from rftd.storage.projector.projector import Projector
from rftd.storage.queries.curve import RewardCurves
from rftd.streams.events.experiment import SignalLost
from rftd.streams.events.step import StepCompleted
from rftd.streams.folds import signal
from rftd.streams.folds.spine import Status
from rftd.streams.log import topics
from rftd.streams.log.codec import decode
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import partition_of

FAILING = '''
from rftd.workers.workflows.simple import SimpleWorkflow
class Failing(SimpleWorkflow):
    """Its tool is away."""
    async def run(self, task, model, reward):
        raise ValueError("the tool is away")
'''
WRONG = "explorer.rollout_model.extra_engine_args={skill: 0, gain: 0}"
"""No answer is ever right."""
_TASKSET = "buffer.explorer_input.taskset"


@dataclass(frozen=True)
class Barren:
    """A run that cannot learn, and what is said of it."""

    name: str
    cause: str
    says: str
    overrides: tuple[str, ...]


RUNS = (
    Barren("long", signal.ALL_PROMPTS_CUT, "max_prompt_tokens (2)", ("model.max_prompt_tokens=2",)),
    Barren("short", signal.ALL_ANSWERS_CUT, "max_response_tokens (1)", ("model.max_response_tokens=1",)),
    Barren(
        "silent",
        signal.ALL_ANSWERS_EMPTY,
        "chat template",
        ("explorer.rollout_model.extra_engine_args={silent: true}",),
    ),
    Barren("weak", signal.REWARDS_EQUAL, "(all 0)", (WRONG,)),
    Barren("column", signal.REWARDS_EQUAL, "format.response_key", (f"{_TASKSET}.format.response_key=unit",)),
    Barren("still", signal.LEARNING_RATE_ZERO, "algorithm.optimizer.lr", ("algorithm.optimizer.lr=0",)),
    Barren(
        "nan",
        signal.NOT_FINITE,
        "the loss is nan",
        ("trainer.engine_args={nan_at_step: 1, nan_steps: 99}", "trainer.max_nonfinite_steps=99"),
    ),
    Barren(
        "level",
        signal.ADVANTAGE_ZERO,
        "std_threshold",
        ("algorithm.advantage_fn_args={std_threshold: 9.0, duplicate_experiences: true}",),
    ),
    Barren(
        "filtered", signal.FILTERED, "no batch is formed", (WRONG, "algorithm.advantage_fn_args={std_threshold: 0.0}")
    ),
    Barren(
        "failing", signal.ROLLOUTS_FAILED, "the tool is away", (f"{_TASKSET}.default_workflow_type=failing_workflow",)
    ),
)


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    parts = {"rftd.workflows": {"failing_workflow": "failing_workflow_of_ten:Failing"}}
    install(tmp_path, "failing_workflow_of_ten", FAILING, parts)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("failing_workflow_of_ten", None)


class Shown:
    """What people and alerts see of the experiments on a log."""

    def __init__(self, log: EventLog, folder: Path) -> None:
        self._log, self._clock = log, SystemClock()
        self._engine = open_database(sqlite_url(folder / "state.db"))
        self._projector = Projector(log, self._engine, clock=self._clock)

    async def get(self, experiment: UUID) -> str:
        """The words of `rftd get`."""
        await self._projector.catch_up()
        async with self._engine.connect() as connection:
            page = await page_of(connection, experiment, RewardCurves())
        text = io.StringIO()
        Console(file=text, width=1000).print(render(page, self._clock))
        return text.getvalue()

    async def metrics(self) -> str:
        """The answer to Prometheus."""
        scrape = Scrape(
            MetricsFeed(Metrics(version="1")),
            log=self._log,
            engine=self._engine,
            applied=self._projector,
            clock=self._clock,
        )
        return (await scrape.text()).decode()

    async def close(self) -> None:
        await self._engine.dispose()


async def why(desk: ForkDesk, supervisor: Supervisor, experiment: UUID) -> str:
    """The words of `rftd why` once it waits for a person, or has failed."""
    async with asyncio.timeout(60):
        while True:
            status = (await desk.state(experiment)).spine.status
            if status is Status.PAUSED or (status is not None and status.ended):
                return " ".join(str(wait) for wait in (await supervisor.why(experiment)).waits)
            await asyncio.sleep(0.1)


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("log", ["sqlite"], indirect=True)
@pytest.mark.usefixtures("failing")
async def test_ten_runs_that_cannot_learn_are_named_within_five_batches(
    tmp_path: Path, log: EventLog, clock: Any, ids: Any, fake_world: Any
) -> None:
    desk = ForkDesk(tmp_path, log, fake_world.executor(log, clock, ids), clock, ids)
    rows = (json.dumps({"question": f"{a}+{a % 10}=", "answer": str(a + a % 10), "unit": "m"}) for a in range(10, 50))
    (tmp_path / "train.jsonl").write_text("\n".join(rows) + "\n")
    usual = ("stages=[{stage_name: rft}]", "buffer.total_steps=40", "explorer.eval_interval=1000")
    usual = (*usual, "trainer.max_idle_steps=5", "deterministic=false", "synchronizer.sync_style=fully_async")
    shown = Shown(log, tmp_path)
    async with desk.open(len(RUNS)) as supervisor:
        handed = {run: await desk.hand_in(supervisor, f"name={run.name}", *usual, *run.overrides) for run in RUNS}
        waits = {run: await why(desk, supervisor, experiment) for run, experiment in handed.items()}
        seen = {run: await shown.get(experiment) for run, experiment in handed.items()}
        metrics = await shown.metrics()
    await shown.close()
    for run, experiment in handed.items():
        partition = partition_of(topics.EXPERIMENTS, experiment)
        records = await log.read(partition, 0, max_records=10_000)
        events = [each.event for each in map(decode, records) if each.head.experiment == experiment]
        [lost] = [each for each in events if isinstance(each, SignalLost)]
        assert lost.cause == run.cause, run
        assert run.says in f"{lost.reason} {lost.fix}", lost
        before = [each for each in events[: events.index(lost)] if isinstance(each, StepCompleted)]
        assert len(before) <= 5, run
        assert lost.step <= 5, run
        for text in (waits[run], seen[run]):
            assert run.cause in text, (run, text)
            assert lost.reason in text, (run, text)
        assert f'rftd_signal_lost{{cause="{run.cause}",experiment="{run.name}"}} 1.0' in metrics, run
