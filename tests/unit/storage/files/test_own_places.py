"""Paths and channels in records: what is not the experiment's own is neither loaded nor removed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.ops.errors import DataError, WorkError
from rftd.storage.files.own_places import check_weights, checkpoint_folder, is_own_checkpoint, is_own_weights
from rftd.storage.files.shared_memory import shared_folder
from rftd.streams.events.checkpoint import CheckpointCommitted
from rftd.streams.events.experiment import ExperimentSubmitted
from rftd.streams.events.weights import WeightsPublished
from rftd.streams.log.codec import decode
from rftd.streams.spec.spec import ExperimentSpec


class World:
    """A specification whose files lie in a folder, and an announcement of each kind."""

    def __init__(self, folder: Path) -> None:
        events = [decode(record).event for record in SyntheticRun(Recorder()).write().recorder.records]
        submitted = next(event for event in events if isinstance(event, ExperimentSubmitted))
        self.job = folder / "job"
        self.spec: ExperimentSpec = msgspec.structs.replace(submitted.spec, job_dir=str(self.job))
        self.committed = next(event for event in events if isinstance(event, CheckpointCommitted))
        self.published = next(event for event in events if isinstance(event, WeightsPublished))


@pytest.fixture
def world(tmp_path: Path) -> World:
    (tmp_path / "elsewhere" / "global_step_1").mkdir(parents=True)
    (tmp_path / "job" / "weights").mkdir(parents=True)
    return World(tmp_path)


def test_a_checkpoint_lies_in_the_folder_of_its_stage(world: World, tmp_path: Path) -> None:
    own = world.job / "global_step_1"
    at = {"stage": 0, "path": str(own)}
    assert checkpoint_folder(world.spec, msgspec.structs.replace(world.committed, **at)) == own
    (world.job / "global_step_2").symlink_to(tmp_path / "elsewhere" / "global_step_1")
    (world.job / "link").symlink_to(tmp_path / "elsewhere")
    for path in (
        *("", "/", "/etc", "global_step_1", f"{world.job}", f"{world.job}/..", f"{own}/..", f"{own}\0"),
        f"{world.job}/../elsewhere/global_step_1",
        f"{world.job}/link/global_step_1",
        f"{world.job}/global_step_2",
        f"{world.job}/weights/global_step_1",
        str(tmp_path / "elsewhere" / "global_step_1"),
    ):
        assert not is_own_checkpoint(world.spec, path), path
        with pytest.raises(DataError, match="not the experiment's"):
            checkpoint_folder(world.spec, msgspec.structs.replace(world.committed, stage=0, path=path))
    with pytest.raises(DataError, match="stage 99"):
        checkpoint_folder(world.spec, msgspec.structs.replace(world.committed, stage=99, path=str(own)))


def test_a_job_folder_may_itself_be_a_link(world: World, tmp_path: Path) -> None:
    (tmp_path / "short").symlink_to(world.job)
    spec = msgspec.structs.replace(world.spec, job_dir=str(tmp_path / "short"))
    assert is_own_checkpoint(spec, str(tmp_path / "short" / "global_step_1"))
    assert is_own_checkpoint(spec, str(world.job / "global_step_1"))


def test_weights_lie_in_the_experiments_folder_and_come_by_a_channel_of_its(world: World, tmp_path: Path) -> None:
    def says(method: str, path: str) -> bool:
        return is_own_weights(world.spec, msgspec.structs.replace(world.published, method=method, path=path))

    own = world.job / "weights" / "v3-g0-e2"
    assert says("checkpoint", str(own))
    for method, path in (
        ("checkpoint", str(world.job / "v3-g0-e2")),
        ("checkpoint", str(tmp_path / "elsewhere" / "v3-g0")),
        ("checkpoint", f"{own}/../../../elsewhere"),
        ("memory", f"{shared_folder(str(world.job))}/v3-g0.mapped"),
        ("nccl", "10.0.0.1:80/v3-g0"),
        ("service", "tinker://somebody/else"),
        ("a_plug_in", str(own)),
    ):
        assert not says(method, path), (method, path)
        with pytest.raises(WorkError, match="not the experiment's"):
            check_weights(world.spec, msgspec.structs.replace(world.published, method=method, path=path))
    stages = tuple(
        msgspec.structs.replace(stage, synchronizer=msgspec.structs.replace(stage.synchronizer, sync_method="memory"))
        for stage in world.spec.stages
    )
    world.spec = msgspec.structs.replace(world.spec, stages=stages)
    assert says("memory", f"{shared_folder(str(world.job))}/v3-g0-e2.mapped")
    assert not says("memory", "/dev/shm/rftd-0000000000000000/v3-g0.mapped")
    assert not says("nccl", "10.0.0.1:80/v3-g0")
