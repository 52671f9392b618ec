"""Folders of experiments that belong to another log: a copy that is served beside the original writes nothing there."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.daemon.run.registry import Registry
from rftd.daemon.run.supervisor.folder_claims import POLL_INTERVAL_S, FolderClaims
from rftd.daemon.run.supervisor.loss_check import LossCheck, Survivors
from rftd.daemon.serve.data_folder import DataFolder
from rftd.daemon.serve.log_identity import identity_of
from rftd.ops.clock import ManualClock
from rftd.ops.errors import LogLossError, OtherLogError
from rftd.ops.ids import SeededIds
from rftd.ops.logs import logger
from rftd.storage.files.folder_owner import LogIdentity, disown, read_owner
from rftd.storage.files.snapshots import FOLDER
from rftd.streams.events.experiment import HeadRef
from rftd.streams.folds.run_state import RunState
from rftd.streams.memory import MemoryLog
from rftd.streams.sqlite.heads_file import FILE_NAME, HeadsFile

pytestmark = pytest.mark.anyio


class Scene:
    """One experiment under way, its log, and the folder in which two data folders name it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.ids = SeededIds(self.clock, 1)
        self.recorder = Recorder()
        run = SyntheticRun(self.recorder, name="one", job_dir=str(folder / "one"))
        run.begin()
        self.experiment = run.id
        self.job = folder / "one"
        self.job.mkdir()
        self.data = self.folder_of("data")

    def folder_of(self, name: str) -> DataFolder:
        data = DataFolder(self.folder / name)
        data.root.mkdir(exist_ok=True)
        return data

    def identity(self, data: DataFolder) -> LogIdentity:
        return identity_of(data, self.ids)

    def copied(self, name: str = "copy") -> DataFolder:
        """A copy of the data folder, beside it."""
        return DataFolder(Path(shutil.copytree(self.data.root, self.folder / name)))

    async def served(self, own: LogIdentity, log: MemoryLog | None = None) -> tuple[LossCheck, Survivors]:
        """A daemon's loss_check on the log, or on another one with the same records, and its run of the experiment."""
        if log is None:
            log = MemoryLog()
            await log.append(self.recorder.drafts)
        registry = Registry(log)
        await registry.catch_up()
        loss_check = LossCheck(log, None, logger=logger(), claims=FolderClaims(own, logger=logger()))
        await loss_check.hear(registry.entries, lambda _: None)
        entry = registry.entries[self.experiment]
        return loss_check, Survivors(loss_check, entry, None, self.clock)  # type: ignore[arg-type] # nobody is asked for


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


async def test_a_copy_beside_the_original_is_refused_with_a_way_out(scene: Scene) -> None:
    await scene.served(scene.identity(scene.data))
    loss_check, survivors = await scene.served(scene.identity(scene.copied()))
    error = loss_check.refusal(scene.experiment)
    assert isinstance(error, OtherLogError)
    assert str(scene.data.root) in error.what
    assert str(scene.folder / "copy") in error.what
    assert "rftd serve --take-over one" in (error.fix or "")
    assert loss_check.free(survivors._loss_check._experiments.values()) == []
    with pytest.raises(OtherLogError):
        await survivors.hear(RunState(scene.experiment))


async def test_what_the_folder_of_another_log_remembers_is_no_loss_of_this_one(scene: Scene) -> None:
    own = scene.identity(scene.data)
    log = MemoryLog()
    await log.append(scene.recorder.drafts)
    await scene.served(own, log)
    (scene.job / FOLDER).mkdir()
    file = HeadsFile(scene.job / FOLDER / FILE_NAME)
    file.write(await log.heads())
    file.close()
    shorter = MemoryLog()
    await shorter.append(scene.recorder.drafts[:-1])
    loss_check, _ = await scene.served(scene.identity(scene.copied()), shorter)
    assert loss_check.losses == []
    again, _ = await scene.served(own, shorter)
    assert isinstance(again.refusal(scene.experiment), LogLossError), "put back in the original's place, it is one"


async def test_a_folder_that_was_taken_over_stops_the_run_that_had_it(scene: Scene) -> None:
    first, run = await scene.served(scene.identity(scene.data))
    await run.compare_older_heads()
    second, _ = await scene.served(scene.identity(scene.copied()))
    second.claims.take_over(second._experiments[scene.experiment])
    assert second.refusal(scene.experiment) is None
    scene.clock.advance(POLL_INTERVAL_S)
    with pytest.raises(OtherLogError):
        await run.compare_older_heads()
    assert isinstance(first.refusal(scene.experiment), OtherLogError)


async def test_a_run_has_its_folder_from_its_first_moment(scene: Scene) -> None:
    scene.job.rmdir()
    own = scene.identity(scene.data)
    _, run = await scene.served(own)
    await run.hear(RunState(scene.experiment))
    owner = read_owner(scene.job)
    assert owner is not None
    assert owner.id == own.id
    _, of_copy = await scene.served(scene.identity(scene.copied()))
    with pytest.raises(OtherLogError):
        await of_copy.hear(RunState(scene.experiment))


async def test_a_folder_that_went_away_is_not_made_anew(scene: Scene) -> None:
    scene.job.rmdir()
    loss_check, run = await scene.served(scene.identity(scene.data))
    loss_check._experiments[scene.experiment].fence = (HeadRef("rftd.experiments", 0, 1, b"0" * 16),)
    await run.hear(RunState(scene.experiment))
    assert not scene.job.exists()


async def test_a_copy_whose_original_is_gone_goes_on(scene: Scene) -> None:
    await scene.served(scene.identity(scene.data))
    copy = scene.copied()
    own = scene.identity(copy)
    loss_check, _ = await scene.served(own)
    assert loss_check.refusal(scene.experiment) is not None
    shutil.rmtree(scene.data.root)
    loss_check, _ = await scene.served(own)
    assert loss_check.refusal(scene.experiment) is None
    owner = read_owner(scene.job)
    assert owner is not None
    assert owner.id == own.id


async def test_moved_log_keeps_its_folders_and_a_returning_original_does_not(scene: Scene) -> None:
    before = scene.identity(scene.data)
    await scene.served(before)
    moved = DataFolder(Path(shutil.copytree(scene.data.root, scene.folder / "moved")))
    away = scene.data.root.rename(scene.folder / "unplugged")
    (away / "log.id").rename(scene.folder / "kept")
    loss_check, _ = await scene.served(scene.identity(moved))
    assert loss_check.refusal(scene.experiment) is None
    (scene.folder / "kept").rename(away / "log.id")
    away.rename(scene.data.root)
    loss_check, _ = await scene.served(scene.identity(scene.data))
    assert isinstance(loss_check.refusal(scene.experiment), OtherLogError)


@pytest.fixture
def another_machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Everything that begins after the call is on a machine of another name."""
    return lambda: monkeypatch.setattr(platform, "node", lambda: "another")


async def test_a_copy_on_another_machine_goes_on_once_a_person_says_so(
    scene: Scene, another_machine: Callable[[], None]
) -> None:
    original = scene.identity(scene.data)
    await scene.served(original)
    copy = scene.copied()
    another_machine()
    own = scene.identity(copy)
    for _ in range(2):
        loss_check, survivors = await scene.served(own)
        error = loss_check.refusal(scene.experiment)
        assert isinstance(error, OtherLogError)
        assert "--take-over '*'" in (error.fix or "")
        with pytest.raises(OtherLogError):
            await survivors.hear(RunState(scene.experiment))
        owner = read_owner(scene.job)
        assert owner is not None
        assert owner.id == original.id
        own = scene.identity(copy)
    await loss_check.take_over(("*",))
    loss_check, _ = await scene.served(own)
    assert loss_check.refusal(scene.experiment) is None


async def test_a_volume_that_another_container_mounts_at_its_place_stays_the_same_log(
    scene: Scene, another_machine: Callable[[], None]
) -> None:
    before = scene.identity(scene.data)
    another_machine()
    assert scene.identity(scene.data).id == before.id
    shutil.copytree(scene.data.root, scene.folder / "kept")
    scene.data.root.rename(scene.folder / "original")
    (scene.folder / "kept").rename(scene.data.root)
    assert scene.identity(scene.data).id == before.id, "put back on the same machine"


def test_a_copy_at_the_same_path_of_another_machine_is_a_copy(
    scene: Scene, another_machine: Callable[[], None]
) -> None:
    before = scene.identity(scene.data)
    copy = scene.copied()
    scene.data.root.rename(scene.folder / "original")
    copy.root.rename(scene.data.root)
    another_machine()
    assert not scene.identity(scene.data).owns(before)


def test_a_folder_that_is_renamed_or_put_back_in_its_place_stays_the_same_log(scene: Scene) -> None:
    before = scene.identity(scene.data)
    backup = scene.copied("backup")
    renamed = DataFolder(scene.data.root.rename(scene.folder / "renamed"))
    assert scene.identity(renamed).id == before.id
    renamed.root.rename(scene.data.root)
    assert scene.identity(scene.data).id == before.id
    shutil.rmtree(scene.data.root)
    backup.root.rename(scene.data.root)
    assert scene.identity(scene.data).id == before.id


async def test_an_import_lets_the_next_log_have_the_folder(scene: Scene) -> None:
    await scene.served(scene.identity(scene.data))
    disown(scene.job)
    loss_check, _ = await scene.served(scene.identity(scene.folder_of("elsewhere")))
    assert loss_check.refusal(scene.experiment) is None


async def test_a_damaged_owner_is_nobody(scene: Scene) -> None:
    await scene.served(scene.identity(scene.data))
    (scene.job / "owner.json").write_bytes(b"{")
    loss_check, _ = await scene.served(scene.identity(scene.copied()))
    assert loss_check.refusal(scene.experiment) is None
