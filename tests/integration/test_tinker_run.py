"""A whole run on a rehearsal of the Tinker service: workers, daemon and the way to the service fail in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from synthetic.models.tinker_rehearsal import KEY, Rehearsal, RehearsalService
from synthetic.until import until

from rftd.daemon.run.supervisor.run import Run
from rftd.ops.logs import logger
from rftd.storage.files.service_state import ServiceState
from rftd.streams.events.checkpoint import CheckpointCommitted
from rftd.streams.events.step import GenerationStarted
from rftd.streams.folds.spine import Status
from rftd.streams.log.codec import decode
from rftd.streams.spec.spec import ExperimentSpec, ModelSpec, RolloutSpec, TrainerSpec
from rftd.streams.sqlite.log import SqliteLog
from rftd.workers.engines.tinker import sdk
from rftd.workers.models.tiny_model import make_tiny_model
from rftd.workers.weights.service import SERVICE

STEPS = 15
E = TypeVar("E")


def spec_of(folder: Path, fake_world: Any, base_model: str = "org/tiny") -> ExperimentSpec:
    """The fake runs' stages, at the service."""
    model = make_tiny_model(folder / "model", seed=3, hidden_size=32, heads=2)
    engines = {
        "rollout": RolloutSpec(engine="tinker", concurrency=8, max_timeout_s=60.0),
        "trainer": TrainerSpec(engine="tinker", save_interval=2, engine_args={"base_model": base_model}),
        "model": ModelSpec(path=str(model), max_model_len=32, max_prompt_tokens=16, max_response_tokens=8),
    }
    spec: ExperimentSpec = fake_world.spec(folder, total_steps=STEPS - 3)
    stages = (msgspec.structs.replace(stage, **engines) for stage in spec.stages)
    stages = (
        msgspec.structs.replace(stage, synchronizer=msgspec.structs.replace(stage.synchronizer, sync_method=SERVICE))
        for stage in stages
    )
    return msgspec.structs.replace(spec, stages=tuple(stages))


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rehearsal]:
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    monkeypatch.setattr("rftd.workers.engines.tinker.watch.CHECK_EVERY_S", 0.05)
    service = Rehearsal()
    monkeypatch.setattr(sdk, "connect", lambda _access: RehearsalService(service))
    yield service
    service.hang_up()


def steps_of(service: Rehearsal, run: Run) -> tuple[str, ...]:
    """The steps that the weights of the newest checkpoint are made of."""
    *_, last = run.state.checkpoints.values()
    return service.saved[ServiceState.read(Path(last.path)).path][0].made_of


async def events(log: SqliteLog, kind: type[E]) -> list[E]:
    """Every event of a kind in the log."""
    found = []
    for partition in await log.heads():
        for record in await log.read(partition, 0, max_records=10_000):
            event = decode(record).event
            if isinstance(event, kind):
                found.append(event)
    return found


@pytest.mark.slow
@pytest.mark.anyio
async def test_killed_and_left_alone_no_step_is_lost_or_doubled(
    tmp_path: Path, clock, ids, fake_world, service: Rehearsal
) -> None:
    log = await SqliteLog.open(tmp_path / "log")
    experiment = await fake_world.submitted(log, spec_of(tmp_path, fake_world), clock, ids)
    executor = fake_world.executor(log, clock, ids)

    def daemon() -> Run:
        return Run(log, experiment, executor, owner=ids.new(), clock=clock, ids=ids, logger=logger())

    def kill_all() -> None:
        for handle in executor.handles:
            handle.kill()
        service.hang_up()  # their threads, which a cancelled task leaves

    def waits(run: Run) -> dict[str, str]:
        return {each.role: each.state for each in run.waits()}

    run = daemon()
    async with asyncio.timeout(200):
        driven = asyncio.ensure_future(run.drive())
        await until(lambda: run.state.spine.version >= 2)
        executor.handles[0].kill()
        await until(lambda: run.state.spine.version >= 4)
        # Away while both sides begin anew, and so ask for something: the newest state, and the newest weights.
        service.away = True
        kill_all()
        await until(lambda: waits(run).get("trainer") == waits(run).get("explorer") == "wait_service")
        service.away = False
        await until(lambda: run.state.spine.version >= 7)
        kill_all()
        driven.cancel()
        await asyncio.wait({driven})
        # The service forgets the newest state meanwhile.
        newest = max(await events(log, CheckpointCommitted), key=lambda each: (each.step, each.generation))
        gone = ServiceState.read(Path(newest.path)).path
        del service.saved[gone]
        run = daemon()
        await run.drive()
    assert run.state.spine.status is Status.COMPLETED, run.state.spine.reason
    made_of = steps_of(service, run)
    assert len(made_of) == len(set(made_of)) == STEPS
    report = await fake_world.verified(log)
    assert report.clean, report.findings
    assert report.experiments[0].generations >= 4
    held = {ServiceState.read(Path(each.path)).path for each in run.state.checkpoints.values()}
    assert held - {gone} <= service.saved.keys()
    (said,) = {each.reason for each in await events(log, GenerationStarted) if "has forgotten" in each.reason}
    assert f"step {newest.step}: " in said
    assert f"has forgotten {gone}" in said
    await log.close()


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("wrong", ["model", "key"])
async def test_a_model_or_key_that_the_service_refuses_holds_the_run_with_the_reason(
    tmp_path: Path, clock, ids, fake_world, service: Rehearsal, wrong: str
) -> None:
    if wrong == "key":
        service.keys.clear()
    spec = spec_of(tmp_path, fake_world, "org/other" if wrong == "model" else "org/tiny")
    log = await SqliteLog.open(tmp_path / "log")
    experiment = await fake_world.submitted(log, spec, clock, ids)
    executor = fake_world.executor(log, clock, ids)
    run = Run(log, experiment, executor, owner=ids.new(), clock=clock, ids=ids, logger=logger())
    said = "does not know the model 'org/other'" if wrong == "model" else "refuses the key of TINKER_API_KEY"
    async with asyncio.timeout(200):
        driven = asyncio.ensure_future(run.drive())
        await until(lambda: said in f"{run.state.spine.reason} {[each.waiting_for for each in run.waits()]}")
        driven.cancel()
        await asyncio.wait({driven})
    assert run.state.spine.version == 0
    assert KEY not in f"{run.state.spine.reason} {run.waits()}"
    for handle in executor.handles:
        handle.kill()
    await log.close()
