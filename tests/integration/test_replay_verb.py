"""`rftd replay` on the logs of real runs: equal where nothing was changed, and clear about what is wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from synthetic.daemon.command_line import Rftd, Said

from rftd.daemon.cli.cli import main
from rftd.daemon.run.supervisor.run import Run
from rftd.ops import faults, limits
from rftd.ops.clock import SystemClock
from rftd.ops.ids import SystemIds
from rftd.ops.logs import logger
from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.experience import ExperienceProduced
from rftd.streams.events.step import StepCompleted
from rftd.streams.folds.spine import Status
from rftd.streams.log.arrays import Array
from rftd.streams.log.codec import decode
from rftd.streams.log.envelope import Record
from rftd.streams.log.topics import Partition
from rftd.streams.spec.spec import ExperimentSpec, TrainerSpec
from rftd.streams.sqlite.log import SqliteLog
from rftd.streams.sqlite.rows import row_sum, unpacked
from rftd.workers.engines.fake.trainer import FakeTrainerEngine

Play = Callable[..., Path]


@pytest.fixture
def rftd(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rftd:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RFTD_DATA", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> Said:
        capsys.readouterr()
        status = main(list(arguments))
        said = capsys.readouterr()
        assert "Traceback" not in said.err, said.err
        assert "RFTD-BUG" not in said.err, said.err
        return Said(status, said.out, said.err)

    return run


@pytest.fixture
def play(tmp_path: Path, fake_world: Any, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Runs an experiment to its end in this process; with `die_at` its trainer dies within that step."""

    async def run(spec: ExperimentSpec, die_at: int, ends: Status) -> None:
        clock = SystemClock()
        ids = SystemIds(clock)
        log = await SqliteLog.open(tmp_path / "log")
        experiment = await fake_world.submitted(log, spec, clock, ids)
        executor = fake_world.executor(log, clock, ids)
        driven = Run(log, experiment, executor, owner=ids.new(), clock=clock, ids=ids, logger=logger())
        steps: list[str] = []

        def kill(name: str) -> None:
            steps.extend([name] if name == "trainer.before_step_append" else [])
            if len(steps) == die_at and not executor.handles[0].task.done():
                executor.handles[0].kill()

        with monkeypatch.context() as patched:
            if die_at:
                patched.setattr(faults, "point", kill)
            async with asyncio.timeout(100):
                await driven.drive()
        assert driven.state.spine.status is ends, driven.state.spine.reason
        assert driven.state.spine.generation == (1 if die_at else 0)
        await log.close()

    def made(spec: ExperimentSpec | None = None, *, die_at: int = 0, ends: Status = Status.COMPLETED) -> Path:
        asyncio.run(run(spec or fake_world.spec(tmp_path), die_at, ends))
        return tmp_path

    return made


@contextmanager
def tables(root: Path) -> Iterator[tuple[apsw.Connection, dict[str, dict[int, int]]]]:
    """The log's file, behind the log's back; and the table of each stream's partitions."""
    connection = apsw.Connection(str(root / "log" / "log.db"))
    parts: dict[str, dict[int, int]] = {}
    for part, stream, number in connection.execute("SELECT id, stream, number FROM part").fetchall():
        parts.setdefault(str(stream), {})[int(number)] = int(part)
    with connection:
        yield connection, parts
    connection.close()


def events(connection: apsw.Connection, parts: dict[int, int]) -> Iterator[tuple[int, int, Any]]:
    """(table, offset, event) of every record of a stream."""
    for number, part in parts.items():
        rows = connection.execute(f"SELECT off, chain, head, value, form FROM p{part}").fetchall()
        for offset, chain, head, stored, form in rows:
            record = Record(Partition("any", number), offset, chain, head, unpacked(stored, form))
            yield part, offset, decode(record).event


def edited_experience(root: Path) -> int:
    """Changes one token of a planned experience, with the row's checksum; returns the step that trained it."""
    with tables(root) as (connection, parts):
        (plan,) = (
            event
            for _, _, event in events(connection, parts["rftd.experiments"])
            if isinstance(event, BatchPlanned) and event.step == 6
        )
        item = plan.experiences[0]
        table = f"p{parts['rftd.experiences'][item.partition]}"
        fields = "id, chain, head, value, form"
        (row,) = connection.execute(f"SELECT {fields} FROM {table} WHERE off = {item.offset}").fetchall()
        id, chain, head, stored, form = row
        event = msgspec.msgpack.decode(unpacked(stored, form), type=ExperienceProduced)
        tokens = event.tokens.view().copy()
        tokens[-1] ^= 1
        other = msgspec.msgpack.encode(msgspec.structs.replace(event, tokens=Array.of(tokens, "u4")))
        total = row_sum(id, chain, head, other, 0)
        change = f"UPDATE {table} SET value = ?, form = 0, sum = ? WHERE off = ?"
        connection.execute(change, (other, total, item.offset))
    return plan.step


def test_each_step_has_a_line_and_the_end_a_verdict(rftd: Rftd, play: Play) -> None:
    play()
    said = rftd("replay", "fake", "--to-step", "3")
    assert said.status == 0
    assert said.err == ""
    lines = said.out.splitlines()
    assert lines[0] == "3 steps from the base model"
    assert [line.split("  ")[0] for line in lines[1:4]] == ["step 1", "step 2", "step 3"]
    assert lines[1].endswith("checksum equal")
    assert lines[2].endswith("checksum and sha256 equal")
    assert lines[4].startswith("3 of 3 steps equal; sha256 compared at 2;")
    assert len(rftd("replay", "fake", "-o", "jsonl").out.splitlines()) == 8


def test_a_difference_is_named_and_check_stops_there(rftd: Rftd, play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    play()
    train = FakeTrainerEngine.train

    def other(self: FakeTrainerEngine, batch: Any) -> Any:
        result = train(self, batch)
        if batch.step == 4:
            self._state = msgspec.structs.replace(self._state, weights="00" * 32)
        return result

    monkeypatch.setattr(FakeTrainerEngine, "train", other)
    said = rftd("replay", "fake", "--check")
    assert said.status == 1
    assert "step 4  DIFFERS: checksum recorded " in said.out
    assert "(batch " in said.out
    assert "step 5" not in said.out
    assert "3 of 4 steps equal" in said.out
    whole = rftd("replay", "fake")
    assert whole.status == 0
    assert "3 of 8 steps equal" in whole.out
    assert "first difference: step 4" in whole.out


def test_another_environment_is_refused_unless_it_is_allowed(
    rftd: Rftd, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    play()
    monkeypatch.setattr(FakeTrainerEngine, "environment", lambda self: {"engine": "fake", "torch": "9.9"})
    said = rftd("replay", "fake", "--check")
    assert said.status == 5
    assert "torch was unknown, here it is 9.9" in said.err
    assert "--allow-drift" in said.err
    said = rftd("replay", "fake", "--check", "--allow-drift")
    assert said.status == 0
    assert "note: torch was unknown, here it is 9.9" in said.err
    assert "8 of 8 steps equal" in said.out


def test_a_changed_dataset_is_refused_by_name(rftd: Rftd, play: Play, tmp_path: Path) -> None:
    play()
    (tmp_path / "train.jsonl").write_text('{"question": "1+1=", "answer": "3"}\n')
    said = rftd("replay", "fake")
    assert said.status == 2
    assert "the plan names" in said.err
    assert "train.jsonl" in said.err


def test_an_artifact_that_is_gone_or_damaged_is_named(
    rftd: Rftd, play: Play, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(limits, "INLINE_ARRAY_SIZE_BYTES", 0)
        play()
    assert rftd("replay", "fake", "--check").status == 0
    artifacts = sorted(path for path in (tmp_path / "job" / "artifacts").rglob("*") if path.is_file())
    data = {path: path.read_bytes() for path in artifacts}
    for path in artifacts:
        path.write_bytes(b"other" + data[path])
    said = rftd("replay", "fake")
    assert said.status == 70
    assert "does not match its digest" in said.err
    assert "artifacts/" in said.err
    for path in artifacts:
        path.unlink()
    said = rftd("replay", "fake")
    assert said.status == 3
    assert "no artifact" in said.err
    assert "artifacts/" in said.err
    assert "step 3  " in said.out, "what needs none is replayed"
    assert "step 4  " not in said.out, "what needs none is replayed"
    assert rftd("verify").status == 0
    said = rftd("export", "fake")
    assert said.status == 3
    assert "no artifact" in said.err


def test_steps_that_do_not_exist(rftd: Rftd, play: Play) -> None:
    play()
    assert rftd("replay", "nobody").status == 3
    said = rftd("replay", "fake", "--to-step", "9")
    assert said.status == 2
    assert "executed were 1 to 8" in said.err


def test_an_experiment_that_never_trained(rftd: Rftd, play: Play, fake_world: Any, tmp_path: Path) -> None:
    spec = fake_world.spec(tmp_path)
    nan = TrainerSpec(engine="fake", max_nonfinite_steps=1, engine_args={"nan_at_step": 1})
    first = msgspec.structs.replace(spec.stages[0], trainer=nan)
    play(msgspec.structs.replace(spec, stages=(first, spec.stages[1])), ends=Status.FAILED)
    said = rftd("replay", "fake")
    assert said.status == 3
    assert "nothing to replay" in said.err


def test_steps_that_were_skipped_are_skipped_again(rftd: Rftd, play: Play, fake_world: Any, tmp_path: Path) -> None:
    """A trainer that took the history up skips them, too: three in a row would have been one too many."""
    spec = fake_world.spec(tmp_path)
    nan = TrainerSpec(engine="fake", engine_args={"nan_at_step": 2, "nan_steps": 2})
    stages = (spec.stages[0], msgspec.structs.replace(spec.stages[1], trainer=nan))
    root = play(msgspec.structs.replace(spec, stages=stages), die_at=6)
    with tables(root) as (connection, parts):
        done = [
            event for _, _, event in events(connection, parts["rftd.experiments"]) if isinstance(event, StepCompleted)
        ]
    first = min(step.step for step in done if step.stage == 1)
    skipped = {step.step for step in done if step.skipped}
    assert skipped == {first + 1, first + 2}
    assert all("loss is nan" in step.skipped for step in done if step.tokens == 0)
    checksums = {step.step: step.checksum for step in done}
    assert checksums[first] == checksums[first + 1] == checksums[first + 2] != checksums[first + 3]
    assert rftd("replay", "fake", "--check").status == 0
    assert rftd("verify").status == 0


def test_a_nan_is_named(rftd: Rftd, play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    play()
    begin = FakeTrainerEngine.begin_stage

    def begin_badly(self: FakeTrainerEngine, stage: Any) -> None:
        begin(self, stage)
        self._args, self._limit = msgspec.structs.replace(self._args, nan_at_step=2), 1

    monkeypatch.setattr(FakeTrainerEngine, "begin_stage", begin_badly)
    said = rftd("replay", "fake")
    assert said.status == 1
    assert "step 2 was skipped: the loss is nan" in said.err
    assert "step 1" in said.out


def test_an_experience_that_was_edited_makes_a_difference(rftd: Rftd, play: Play) -> None:
    root = play()
    changed = edited_experience(root)
    said = rftd("replay", "fake", "--check", "--json")
    assert said.status == 1
    answer = json.loads(said.out)
    assert answer["equal"] == answer["steps"] - 1
    assert answer["items"][-1]["step"] == changed
    assert rftd("verify").status == 1, "the chain tells as well"


def test_what_the_log_has_lost_is_named(rftd: Rftd, play: Play) -> None:
    root = play()
    with tables(root) as (connection, parts):
        for part in parts["rftd.experiences"].values():
            connection.execute(f"DELETE FROM p{part} WHERE off >= (SELECT max(off) FROM p{part})")
    said = rftd("replay", "fake")
    assert said.status == 70
    assert "rftd.experiences/" in said.err
    assert "is missing" in said.err
    assert "step 3" in said.out, "what is there is replayed"
    with tables(root) as (connection, parts):
        for part in parts["rftd.experiments"].values():
            connection.execute(f"DELETE FROM p{part} WHERE off = 9")
    said = rftd("replay", "fake")
    assert said.status == 70
    assert "rftd.experiments/" in said.err
    assert "is missing" in said.err
    assert rftd("verify").status != 0


def test_a_log_that_was_cut_off_is_replayed_as_far_as_it_goes(rftd: Rftd, play: Play) -> None:
    root = play()
    with tables(root) as (connection, parts):
        (offset,) = (
            offset
            for part, offset, event in events(connection, parts["rftd.experiments"])
            if isinstance(event, StepCompleted) and event.step == 5
        )
        for part in parts["rftd.experiments"].values():
            connection.execute(f"DELETE FROM p{part} WHERE off >= {offset}")
    said = rftd("replay", "fake", "--check")
    assert said.status == 0
    assert "4 of 4 steps equal" in said.out
    assert rftd("verify").status != 0
