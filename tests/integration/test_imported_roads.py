"""Whatever is made of an imported experiment's file goes where the import moved its folders, never to the old ones."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import UUID

import pytest
from synthetic.daemon.fork_desk import ForkDesk

from rftd.daemon.run.supervisor.relocation import relocated
from rftd.ops.clock import SystemClock
from rftd.ops.ids import Ids
from rftd.storage.portable.experiment import export_experiment, import_experiment
from rftd.streams.log.marked import moved
from rftd.streams.spec.spec import ExperimentSpec
from rftd.streams.sqlite.log import SqliteLog

pytestmark = pytest.mark.anyio

BENCH = ("mode=bench", "stages=[]", "deterministic=false")
SHORT = "stages.1.buffer.total_steps=2"


class Relocation:
    """An experiment that ended in one folder, and the log of another folder that has imported it."""

    def __init__(self, folder: Path, clock: SystemClock, ids: Ids, fake_world) -> None:
        self.old = folder / "old"
        self.old.mkdir()
        self.job = self.old / "checkpoints" / "forks" / "sums"
        self.ids = ids
        self._clock = clock
        self._world = fake_world

    def desk(self, log: SqliteLog) -> ForkDesk:
        """The desk of a log, whose files name the old folder."""
        return ForkDesk(self.old, log, self._world.executor(log, self._clock, self.ids), self._clock, self.ids)

    async def trained(self, log: SqliteLog, *overrides: str) -> UUID:
        """An experiment that ended in the old folder."""
        desk = self.desk(log)
        async with desk.open() as supervisor:
            experiment = await desk.submit(supervisor, *overrides)
        await desk.left()
        return experiment

    async def carry(
        self, log: SqliteLog, experiment: UUID, home: Path, moves: Sequence[tuple[Path, Path]]
    ) -> SqliteLog:
        """A log of the folder `home` into which the experiment was imported, with the data of the old folder beside."""
        file = home.with_suffix(".rftd")
        await export_experiment(log, experiment, file, release="1", clock=self._clock, checkpoints="all")
        self._leave_for(home)
        other = await SqliteLog.open(home / "log")
        names = [(str(old), str(new)) for old, new in moves]
        await import_experiment(other, file, home=home, clock=self._clock, moves=names)
        again = await import_experiment(other, file, home=home, clock=self._clock, moves=names)
        assert again.appended == 0
        return other

    def _leave_for(self, home: Path) -> None:
        """The data in the new folder, and the job folder gone, as on another machine."""
        shutil.rmtree(self.job, ignore_errors=True)
        home.mkdir()
        for data in ("train.jsonl", "eval.jsonl"):
            shutil.copy(self.old / data, home)


@pytest.fixture
def relocation(tmp_path: Path, clock: SystemClock, ids: Ids, fake_world) -> Relocation:
    return Relocation(tmp_path, clock, ids, fake_world)


@pytest.fixture
async def source(tmp_path: Path):
    log = await SqliteLog.open(tmp_path / "source")
    yield log
    await log.close()


def files_below(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def paths_of(spec: ExperimentSpec) -> list[str]:
    """Every absolute path that a specification and its file name."""
    paths: list[str] = []

    def seen(path: str) -> str:
        paths.append(path)
        return path

    moved(spec, seen)
    return [path for path in (*paths, *texts_of(spec.config)) if path.startswith("/")]


def texts_of(node: object) -> Iterator[str]:
    if isinstance(node, dict | list):
        for value in node.values() if isinstance(node, dict) else node:
            yield from texts_of(value)
    elif isinstance(node, str):
        yield node


async def specs_made(desk: ForkDesk, parent: UUID) -> list[ExperimentSpec]:
    """The specifications of a fork, of benches and of a continuation of the parent, each run to its end."""
    async with desk.open() as supervisor:
        fork = (await desk.fork(supervisor, parent, 6, "stages.1.buffer.total_steps=4")).experiment
        bench = await desk.hand_in(supervisor, *BENCH)
        continuation = await desk.hand_in(supervisor)
        states = [await desk.completed(experiment) for experiment in (fork, bench, continuation)]
    await desk.left()
    spines = [state.spine for state in states]
    assert [spine.forked.parent for spine in spines if spine.forked] == [parent] * 3
    return [spine.spec for spine in spines if spine.spec]


async def check_made(relocation: Relocation, log: SqliteLog, parent: UUID, new: Path) -> list[ExperimentSpec]:
    """What is made of the import, after a look at where it went."""
    desk = relocation.desk(log)
    before = files_below(relocation.old)
    made = await specs_made(desk, parent)
    assert files_below(relocation.old) == before
    for spec in made:
        assert Path(spec.job_dir).is_relative_to(new), spec.name
        assert Path(spec.config["checkpoint_root_dir"]).is_relative_to(new), spec.name
    return made


@pytest.mark.parametrize("mapped", ["all", "job", "nothing"])
async def test_what_is_made_of_an_import_stays_in_the_new_folders(
    relocation: Relocation, source: SqliteLog, tmp_path: Path, fake_world, mapped: str
) -> None:
    new = tmp_path / "new"
    moves = {"all": [(relocation.old, new)], "job": [(relocation.job, new / "jobs" / "mine")], "nothing": []}[mapped]
    parent = await relocation.trained(source, SHORT)
    log = await relocation.carry(source, parent, new, moves)
    for spec in await check_made(relocation, log, parent, new):
        outside = [path for path in paths_of(spec) if not Path(path).is_relative_to(new)]
        assert mapped != "all" or not outside, spec.name
    report = await fake_world.verified(log)
    assert report.clean, report.findings
    await log.close()


async def test_two_imports_in_a_row_move_the_file_twice(
    relocation: Relocation, source: SqliteLog, tmp_path: Path, fake_world
) -> None:
    """The second mapping has a folder of its own for a part of what the first one made."""
    middle = tmp_path / "middle"
    new = tmp_path / "new"
    parent = await relocation.trained(source, SHORT)
    log = await relocation.carry(source, parent, middle, [(relocation.old, middle)])
    moves = [(middle, new), (middle / "train.jsonl", new / "rows.jsonl")]
    last = await relocation.carry(log, parent, new, moves)
    (new / "train.jsonl").rename(new / "rows.jsonl")
    shutil.rmtree(middle)
    for spec in await check_made(relocation, last, parent, new):
        assert [path for path in paths_of(spec) if not Path(path).is_relative_to(new)] == [], spec.name
    report = await fake_world.verified(last)
    assert report.clean, report.findings
    await log.close()
    await last.close()


@pytest.mark.parametrize("below", ["new", "old/within"])
@pytest.mark.parametrize(("earlier", "later"), [("explore", "train"), ("train", "explore")])
async def test_the_other_half_of_an_imported_one_is_filled_from_its_new_folders(
    relocation: Relocation, source: SqliteLog, tmp_path: Path, below: str, earlier: str, later: str
) -> None:
    """The half that comes later leaves out what both use, and takes it from the half that was imported.

    Below the old folder, its paths would be moved once more than they should.
    """
    new = tmp_path / below
    desk = relocation.desk(source)
    halves = ("stages=[]", "deterministic=false")
    async with desk.open() as supervisor:
        first = await desk.hand_in(supervisor, f"mode={earlier}", *halves)
    log = await relocation.carry(source, first, new, [(relocation.old, new)])
    other = relocation.desk(log)
    async with other.open() as supervisor:
        second = await other.hand_in(supervisor, f"mode={later}", *halves)
        assert second == first
        spine = (await other.state(first)).spine
        await supervisor.cancel(first, request_id=relocation.ids.new(), reason="")
        await other.ended(first)
    assert spine.halves == {"explore", "train"}
    assert spine.spec is not None
    assert Path(spine.spec.job_dir).is_relative_to(new)
    paths = paths_of(relocated(spine.spec, spine))
    assert [path for path in paths if not Path(path).is_relative_to(new)] == []
    assert [path for path in paths if Path(path).parts.count(new.name) != 1] == []
    await other.left()
    await log.close()


async def test_another_experiment_of_the_old_root_is_none_of_the_import(
    relocation: Relocation, source: SqliteLog, tmp_path: Path
) -> None:
    """Only the file of the imported experiment moves along; another name is what its file says."""
    parent = await relocation.trained(source, SHORT)
    log = await relocation.carry(source, parent, tmp_path / "new", [(relocation.old, tmp_path / "new")])
    desk = relocation.desk(log)
    async with desk.open() as supervisor:
        other = await desk.submit(supervisor, "name=other", SHORT)
        spec = (await desk.completed(other)).spine.spec
    assert spec is not None
    assert Path(spec.job_dir).is_relative_to(relocation.old)
    assert not any("moved" in warning for warning in spec.warnings)
    await desk.left()
    await log.close()
