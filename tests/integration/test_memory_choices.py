"""What acceptance chose by the memory of a machine stays: after kills, in forks, continuations and replays."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from synthetic.daemon.fork_desk import EXPERIMENT, ForkDesk
from synthetic.faults.small_volume import SmallVolume, small_volume

from rftd.daemon.config.loading import load_text
from rftd.daemon.run.supervisor import intake, memory_plan
from rftd.daemon.run.supervisor.disk_guard import DiskGuard, DiskLimits
from rftd.ops.logs import logger
from rftd.storage.files.disk import LocalDisk
from rftd.streams.log.log import EventLog
from rftd.streams.spec.spec import ExperimentSpec, StageSpec
from rftd.workers.control.hold import DISK_FULL
from rftd.workers.devices.discovery import find_host
from rftd.workers.devices.host import Device
from rftd.workers.engines.torch.trainer.engine import TorchTrainerEngine
from rftd.workers.learning.engine_registry import make_engine
from rftd.workers.models.tiny_model import make_tiny_model
from rftd.workers.training import loop
from rftd.workers.training.rerun import Rerun

LONGEST = 64
WARMUP = (
    "{stage_name: warmup, mode: train, algorithm: {algorithm_type: sft}, buffer: {train_batch_size: 8, "
    "total_steps: STEPS, trainer_input: {experience_buffer: {name: warmup, path: ./train.jsonl, "
    "format: {prompt_type: raw, prompt_key: question, response_key: answer}}}}}"
)
DEVICE = Device(kind="cpu", index=0, name="CPU", memory_bytes=1 << 36)
Free = Callable[[int], None]


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Free:
    """Sets the memory that is free on the machine."""

    def set_to(size_bytes: int) -> None:
        monkeypatch.setattr(memory_plan, "free_on", lambda device: size_bytes)

    return set_to


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Micro-batch, and whether layers are computed again, of each stage that an engine has begun."""
    begun: list[tuple[int, bool]] = []
    begin_stage = TorchTrainerEngine.begin_stage

    def noted(engine: TorchTrainerEngine, stage: StageSpec) -> None:
        begun.append(chosen(stage))
        begin_stage(engine, stage)

    monkeypatch.setattr(TorchTrainerEngine, "begin_stage", noted)
    return begun


@pytest.fixture
async def desk(tmp_path: Path, log: EventLog, clock, ids, fake_world) -> AsyncIterator[ForkDesk]:
    executor = fake_world.executor(log, clock, ids)
    host = msgspec.structs.replace(find_host(), devices=(DEVICE,))
    executor.host = lambda: host
    yield ForkDesk(tmp_path, log, executor, clock, ids)


@pytest.fixture(scope="module")
def overrides(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], tuple[str, ...]]:
    """SFT of a real model, of so many steps."""
    model = make_tiny_model(tmp_path_factory.mktemp("models") / "model", seed=0)

    def of_steps(steps: int) -> tuple[str, ...]:
        return (
            "deterministic=false",
            f"model.model_path={model}",
            "trainer.trainer_type=torch",
            f"stages=[{WARMUP.replace('STEPS', str(steps))}]",
        )

    return of_steps


def chosen(stage: StageSpec) -> tuple[int, bool]:
    return stage.trainer.max_tokens_per_micro_batch, bool(stage.trainer.engine_args.get("gradient_checkpointing"))


async def recorded(desk: ForkDesk, experiment: UUID) -> ExperimentSpec:
    """The specification in the log; its memory is that of its micro-batch."""
    spec = (await desk.state(experiment)).spine.spec
    assert spec is not None
    (stage,) = spec.stages
    needs = [need.what for row in spec.memory for need in row.needs]
    tokens = min(chosen(stage)[0], stage.train_batch_size * LONGEST)
    assert any(f"activations of {tokens} tokens" in what for what in needs), needs
    return spec


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_choice_outlives_kills_forks_continuations_and_replays(
    desk: ForkDesk, free: Free, trained: list[tuple[int, bool]], overrides, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made while memory was short, and taken up while there is plenty of it."""
    reached: list[str] = []

    def kill_trainer(name: str) -> None:
        reached.extend([name] if name == "trainer.before_step_append" else [])
        if len(reached) == 2 and not desk.executor.handles[0].task.done():
            free(1 << 40)
            desk.executor.handles[0].kill()

    free(1 << 20)
    with monkeypatch.context() as patch:
        patch.setattr(loop.faults, "point", kill_trainer)
        async with desk.open() as supervisor:
            first = await desk.submit(supervisor, *overrides(4))
    assert (await desk.completed(first)).spine.generation == 1, "its trainer was killed"
    free(1 << 40)
    async with desk.open() as supervisor:
        continued = await desk.submit(supervisor, *overrides(6))
        fork = await desk.fork(supervisor, first, 2)
        fresh = await desk.submit(supervisor, *overrides(1), "continue_from_checkpoint=false")
        await desk.completed(fork.experiment)
    specs = [await recorded(desk, experiment) for experiment in (first, continued, fork.experiment, fresh)]
    assert [chosen(spec.stages[0]) for spec in specs] == [*[(LONGEST, True)] * 3, (4096, False)]
    assert {count for count in trained if count[0] == LONGEST} == {(LONGEST, True)}
    assert (await desk.state(continued)).spine.forked is not None
    trained.clear()
    record = await desk.record(first)
    with ThreadPoolExecutor(1) as thread:
        again = Rerun(desk.log, record, make_engine(specs[0].stages[0].trainer), thread=thread)
        await again.take_up(at_most=0)
        assert all([(await again.step(number)).equal for number in range(1, 5)])
    assert set(trained) == {(LONGEST, True)}


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[SmallVolume]:
    """The folder of checkpoints."""
    with small_volume(tmp_path / "checkpoints", 32 << 20) as mounted:
        yield mounted


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_choice_outlives_a_disk_that_is_full_at_the_last_checkpoint(
    desk: ForkDesk,
    clock,
    volume: SmallVolume,
    free: Free,
    trained: list[tuple[int, bool]],
    overrides,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Made while memory was short; the room comes back under another daemon, when there is plenty of memory."""
    steps = 3
    completed: list[str] = []

    def fill(name: str) -> None:
        completed.extend([name] if name == "trainer.after_step_append" else [])
        if len(completed) == steps:
            volume.fill()

    def guard() -> DiskGuard:
        allowed = DiskLimits(reserve_bytes=256 << 10)
        return DiskGuard(LocalDisk(), desk.folder, allowed, clock=clock, logger=logger())

    free(1 << 20)
    with monkeypatch.context() as patch:
        patch.setattr(loop.faults, "point", fill)
        async with desk.open(guard=guard()) as supervisor:
            experiment = await desk.hand_in(supervisor, *overrides(steps), "trainer.save_interval=1000")
            paused = await desk.paused(experiment)
    assert paused.spine.cause == DISK_FULL, paused.spine.reason
    assert not paused.checkpoints, "there was no room for the last one"
    free(1 << 40)
    volume.empty()
    trained.clear()
    async with desk.open(guard=guard()):
        state = await desk.completed(experiment)
    assert [(saved.step, saved.final) for saved in state.checkpoints.values()] == [(steps, True)]
    spec = await recorded(desk, experiment)
    assert chosen(spec.stages[0]) == (LONGEST, True)
    assert set(trained) == {(LONGEST, True)}, "the steps were trained again, with the same micro-batch"


class KilledError(Exception):
    """Stands for the end of a daemon's process."""


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize(("free_bytes", "later_bytes"), [(1 << 40, 1 << 20), (1 << 20, 1 << 40)])
async def test_a_request_that_a_crash_cut_in_two_is_accepted_with_what_it_chose(
    desk: ForkDesk, ids, free: Free, overrides, monkeypatch: pytest.MonkeyPatch, free_bytes: int, later_bytes: int
) -> None:
    """The same request finds the submission that the daemon before had appended, and not yet accepted."""

    def kill_daemon(name: str) -> None:
        if name == "submission.between_appends":
            raise KilledError

    config = load_text(EXPERIMENT, "test.yaml", overrides=overrides(1), environ={}, cwd=desk.folder).config
    request_id = ids.new()
    free(free_bytes)
    with monkeypatch.context() as patch:
        patch.setattr(intake.faults, "point", kill_daemon)
        async with desk.open() as supervisor:
            with pytest.raises(KilledError):
                await supervisor.submit(config, request_id=request_id)
    free(later_bytes)
    async with desk.open() as supervisor:
        accepted = await supervisor.submit(config, request_id=request_id)
        await desk.completed(accepted.experiment)
    spec = await recorded(desk, accepted.experiment)
    assert chosen(spec.stages[0]) == ((4096, False) if free_bytes > later_bytes else (LONGEST, True))
    (warned,) = {tuple(spec.warnings), tuple(accepted.warnings)}
    assert any("micro-batches have" in warning for warning in warned) == (free_bytes < later_bytes)
