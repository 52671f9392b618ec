"""Corruption that is planted in the log or the files of a real run, and the rule of `rftd verify` that finds it."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import apsw
import msgspec
import pytest

from rftd.daemon.cli.cli import main
from rftd.daemon.cli.verbs.verify import _report_text, files_of
from rftd.daemon.run.supervisor.run import Run
from rftd.ops import limits
from rftd.ops.clock import SystemClock
from rftd.ops.ids import SystemIds
from rftd.ops.logs import logger
from rftd.storage.files.service_state import PATH as STATE
from rftd.streams.events import experiment as life
from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.checkpoint import CheckpointCommitted, FileRef
from rftd.streams.events.experience import ExperienceProduced
from rftd.streams.events.experiment import ExperimentSubmitted, Fence
from rftd.streams.events.step import EvalCompleted, GenerationStarted, StepCompleted
from rftd.streams.events.task import GroupClosed
from rftd.streams.events.weights import WeightsActivated, WeightsPublished
from rftd.streams.folds.spine import Status
from rftd.streams.log import topics
from rftd.streams.log.chain import GENESIS, Mark, link
from rftd.streams.log.codec import Writer, decode, encode_value
from rftd.streams.log.envelope import Decoded, Draft, Record
from rftd.streams.log.topics import TRUTH, Partition
from rftd.streams.log.writers import holder_source
from rftd.streams.memory import MemoryLog
from rftd.streams.sqlite.log import SqliteLog
from rftd.streams.sqlite.view import SqliteView
from rftd.streams.verify.checker import verify
from rftd.workers.weights.service import SERVICE

Change = Callable[[Decoded], Any]
"""What an event becomes; None: its record is gone."""
_replace = msgspec.structs.replace
_made: dict[str, Path] = {}


@pytest.fixture
def made(tmp_path_factory: pytest.TempPathFactory, fake_world: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run that has ended, its arrays as artifacts; made once for all tests of this file."""
    if "root" not in _made:
        monkeypatch.setattr(limits, "INLINE_ARRAY_SIZE_BYTES", 0)
        root = tmp_path_factory.mktemp("planted")
        asyncio.run(_run(root, fake_world))
        _made["root"] = root
    return _made["root"]


async def _run(root: Path, fake_world: Any) -> None:
    clock = SystemClock()
    ids = SystemIds(clock)
    log = await SqliteLog.open(root / "log")
    experiment = await fake_world.submitted(log, fake_world.spec(root), clock, ids)
    executor = fake_world.executor(log, clock, ids)
    driven = Run(log, experiment, executor, owner=ids.new(), clock=clock, ids=ids, logger=logger())
    async with asyncio.timeout(100):
        await driven.drive()
    assert driven.state.spine.status is Status.COMPLETED
    await log.close()


@pytest.fixture
def data(made: Path, tmp_path: Path) -> Path:
    """A copy of its log; its files are where they were."""
    shutil.copytree(made / "log", tmp_path / "log")
    return tmp_path


def found(capsys: pytest.CaptureFixture[str], data: Path, *flags: str) -> dict[str, list[str]]:
    """What `rftd verify` finds, by rule."""
    capsys.readouterr()
    status = main(["--data", str(data), "verify", "--json", *flags])
    said = capsys.readouterr()
    report = json.loads(said.out)
    assert status == (1 if report["findings"] else 0), said.err
    rules: dict[str, list[str]] = {}
    for finding in report["findings"]:
        rules.setdefault(finding["rule"], []).append(finding["what"])
    return rules


def records_in(root: Path) -> dict[Partition, list[Record]]:
    """Every record of the run."""

    async def read() -> dict[Partition, list[Record]]:
        view = await SqliteView.open(root / "log")
        try:
            return {partition: await view.read(partition, 0) for partition in TRUTH}
        finally:
            await view.close()

    return asyncio.run(read())


def events(root: Path, kind: type[Any]) -> Iterator[tuple[Partition, int, Any]]:
    """The events of one type, with their places."""
    for partition, records in records_in(root).items():
        for record in records:
            event = decode(record).event
            if isinstance(event, kind):
                yield partition, record.offset, event


def test_what_was_not_touched_is_clean(capsys: pytest.CaptureFixture[str], data: Path) -> None:
    assert found(capsys, data, "--files", "--index") == {}


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _an_artifact(root: Path) -> Path:
    return next(path for path in sorted((root / "job" / "artifacts").rglob("*")) if path.is_file())


def _a_checkpoint_file(root: Path) -> Path:
    *_, (_, _, event) = events(root, CheckpointCommitted)
    return Path(event.path) / next(file.path for file in event.files if file.path != "log.json")


@pytest.mark.parametrize("harm", [_flip, Path.unlink], ids=["a byte", "gone"])
@pytest.mark.parametrize("find", [_an_artifact, _a_checkpoint_file])
def test_a_file_that_is_damaged_or_gone_is_found(
    capsys: pytest.CaptureFixture[str],
    made: Path,
    data: Path,
    find: Callable[[Path], Path],
    harm: Callable[[Path], None],
) -> None:
    path = find(made)
    content = path.read_bytes()
    try:
        harm(path)
        rules = found(capsys, data, "--files")
        assert list(rules) == ["files-are-whole"]
        assert str(path.parent) in rules["files-are-whole"][0]
        assert found(capsys, data) == {}, "only --files reads them"
    finally:
        path.write_bytes(content)


def _execute(data: Path, *statements: str) -> None:
    connection = apsw.Connection(str(data / "log" / "log.db"))
    for statement in statements:
        connection.execute(statement)
    connection.close()


def _table(data: Path, partition: Partition) -> str:
    connection = apsw.Connection(str(data / "log" / "log.db"))
    number = connection.execute("SELECT id FROM part WHERE stream = ? AND number = ?", tuple(partition)).get
    connection.close()
    return f"p{number}"


@pytest.mark.parametrize("remembered", [True, False], ids=["log.heads there", "log.heads gone"])
def test_a_last_checkpoint_whose_event_is_gone_is_found(
    capsys: pytest.CaptureFixture[str], data: Path, remembered: bool
) -> None:
    *_, (partition, offset, _) = events(data, CheckpointCommitted)
    _execute(data, f"DELETE FROM {_table(data, partition)} WHERE off >= {offset}")
    if not remembered:
        (data / "log" / "log.heads").unlink()
    rules = found(capsys, data, "--files")
    assert "completed-is-complete" in rules
    assert "is a checkpoint that no event names" in rules["files-are-whole"][0]
    assert "heads-remembered" in rules, "without log.heads a snapshot remembers it"


def test_the_last_event_of_the_spine_is_missed(capsys: pytest.CaptureFixture[str], data: Path) -> None:
    *_, (partition, offset, _) = events(data, life.ExperimentCompleted)
    _execute(data, f"DELETE FROM {_table(data, partition)} WHERE off >= {offset}")
    rules = found(capsys, data)
    assert f"{partition}@{offset}" in rules["heads-remembered"][0]


def test_an_emptied_index_of_ids_is_found(capsys: pytest.CaptureFixture[str], data: Path) -> None:
    parts = records_in(data)
    rows = ", ".join(f"({_table(data, each)[1:]}, {len(some)})" for each, some in parts.items() if some)
    _execute(data, f"INSERT OR REPLACE INTO indexed VALUES {rows}")
    rules = found(capsys, data, "--index")
    assert list(rules) == ["ids-are-indexed"]
    assert "is not in the index of ids" in rules["ids-are-indexed"][0]
    assert found(capsys, data) == {}, "the records are whole"


def test_it_goes_on_after_a_damaged_row(capsys: pytest.CaptureFixture[str], data: Path) -> None:
    partition = next(each for each, some in records_in(data).items() if each.stream == topics.TASKS and len(some) > 8)
    _execute(data, f"UPDATE {_table(data, partition)} SET head = x'00' WHERE off IN (2, 5, 6)")
    rules = found(capsys, data)
    assert len(rules["undamaged"]) == 2
    assert f"{partition}@2" in rules["undamaged"][0]
    assert "everything below 7" in rules["undamaged"][1]
    assert "chain" not in rules, "what follows a damaged record is no second finding"


def _append(data: Path, make: Callable[[Writer, UUID, Partition], Draft]) -> None:
    [(partition, _, _)] = events(data, ExperimentSubmitted)
    experiment = decode(records_in(data)[partition][0]).head.experiment
    assert experiment is not None

    async def append() -> None:
        clock = SystemClock()
        log = await SqliteLog.open(data / "log")
        await log.append([make(Writer(source="stranger", clock=clock, ids=SystemIds(clock)), experiment, partition)])
        await log.close()

    asyncio.run(append())


def test_a_plan_of_no_role_and_an_invented_fence_are_found(capsys: pytest.CaptureFixture[str], data: Path) -> None:
    [*_, (_, _, last)] = events(data, BatchPlanned)
    plan = _replace(last, batch=UUID(int=5), step=last.step + 1)
    _append(data, lambda writer, experiment, _: writer.draft(plan, experiment=experiment))

    def fence(writer: Writer, experiment: UUID, partition: Partition) -> Draft:
        event = Fence(role="planner", epoch=2, previous=1, owner=UUID(int=6))
        planner = writer.under(role="planner", epoch=2)
        planner.source = holder_source("planner", event.owner)
        return planner.draft(event, experiment=experiment, partition=partition)

    _append(data, fence)
    one, other = found(capsys, data)["fences-come-first"]
    assert "batch.planned" in one
    assert "was written by no role" in one
    assert "the planner, and it never was the controller" in other


def rewritten(records: dict[Partition, list[Record]], change: Change, *, chained: bool) -> MemoryLog:
    """The log with some events changed or gone, and every digest and offset made anew."""
    log = MemoryLog()
    for partition, some in records.items():
        kept: list[Record] = []
        chain = GENESIS
        for record in some:
            decoded = decode(record)
            event = change(decoded)
            if event is None:
                continue
            value = record.value if event is decoded.event else encode_value(event)
            chain = link(chain if chained else GENESIS, record.head, value)
            kept.append(Record(partition, len(kept), chain, record.head, value))
        if kept:
            log._records[partition] = kept
            log._tail.advance((), {partition: Mark(len(kept), chain)})
    return log


def _first(kind: type[Any], make: Callable[[Any], Any]) -> Change:
    """Changes the first event of a type for which something is made."""
    done: list[object] = []

    def change(decoded: Decoded) -> Any:
        if isinstance(decoded.event, kind) and not done:
            done.append(decoded.event)
            return make(decoded.event)
        return decoded.event

    return change


def _all(kind: type[Any], chosen: Callable[[Decoded], bool]) -> Change:
    """Takes events of a type out."""
    return lambda decoded: None if isinstance(decoded.event, kind) and chosen(decoded) else decoded.event


PLANTED: dict[str, tuple[Callable[[], Change], str]] = {
    "a reward": (
        lambda: _first(ExperienceProduced, lambda event: _replace(event, reward=event.reward + 1.0)),
        "members-are-their-experiences",
    ),
    "a reward in its group": (
        lambda: _first(
            GroupClosed,
            lambda event: _replace(event, members=(_replace(event.members[0], reward=9.0), *event.members[1:])),
        ),
        "members-are-their-experiences",
    ),
    "a metric of a step": (
        lambda: _first(StepCompleted, lambda event: _replace(event, metrics={**event.metrics, "loss": 0.0})),
        "spine-is-as-read",
    ),
    "a seed": (
        lambda: _first(
            ExperimentSubmitted, lambda event: _replace(event, spec=_replace(event.spec, seed=event.spec.seed + 1))
        ),
        "spine-is-as-read",
    ),
    "a path": (
        lambda: _first(
            ExperimentSubmitted, lambda event: _replace(event, spec=_replace(event.spec, job_dir="/elsewhere"))
        ),
        "spine-is-as-read",
    ),
    "why a generation began": (
        lambda: _first(GenerationStarted, lambda event: _replace(event, reason="another one")),
        "spine-is-as-read",
    ),
    "a plan's clock": (
        lambda: _first(BatchPlanned, lambda event: _replace(event, decided_at_ns=event.decided_at_ns + 1)),
        "spine-is-as-read",
    ),
    "the score of an evaluation": (
        lambda: _first(EvalCompleted, lambda event: _replace(event, score=event.score + 0.25)),
        "evals-are-their-scores",
    ),
    "a part of the score of an evaluation": (
        lambda: _first(EvalCompleted, lambda event: _replace(event, metrics={"reward/accuracy/mean": 0.125})),
        "evals-are-their-scores",
    ),
    "fences are gone": (
        lambda: _all(Fence, lambda decoded: decoded.partition.stream == topics.TASKS),
        "fences-come-first",
    ),
    "an evaluation is gone": (
        lambda: _all(EvalCompleted, lambda decoded: decoded.event.version == 3),
        "evals-are-their-scores",
    ),
    "an activation is gone": (
        lambda: _all(WeightsActivated, lambda decoded: decoded.event.version == 3),
        "announcements-have-a-step",
    ),
    "the weights of a step": (
        lambda: _first(StepCompleted, lambda event: _replace(event, checksum="0" * 32)),
        "spine-is-as-read",
    ),
}


@pytest.mark.parametrize("chained", [True, False], ids=["chained", "as on Kafka"])
@pytest.mark.parametrize("name", PLANTED)
def test_a_record_that_was_rewritten_with_its_digests_is_found(made: Path, name: str, chained: bool) -> None:
    change, rule = PLANTED[name]
    log = rewritten(records_in(made), change(), chained=chained)
    findings = asyncio.run(verify(log, chained=chained)).findings
    assert rule in {finding.rule for finding in findings}, findings


@pytest.mark.parametrize("lost", [(0, 3), (2, 4)], ids=["the first", "some"])
def test_deleted_records_of_kafka_are_found(made: Path, lost: tuple[int, int]) -> None:
    log = rewritten(records_in(made), lambda decoded: decoded.event, chained=False)
    partition, records = next((each, some) for each, some in log._records.items() if len(some) > 8)
    gone = {record.offset for record in records[slice(*lost)]}
    log._records[partition] = [record for record in records if record.offset not in gone]
    report = asyncio.run(verify(log, chained=False))
    [finding] = [each.what for each in report.findings if each.rule == "gapless"]
    assert f"{len(gone)} of the records {min(gone)} to {max(gone)} of {partition} are gone" in finding


@pytest.mark.parametrize("imported", [True, False])
def test_what_a_checkpoint_remembers_is_compared_with_its_own_log_alone(made: Path, imported: bool) -> None:
    def change(decoded: Decoded) -> Any:
        event = decoded.event
        # An import leaves the digests out, for its places are others.
        return _replace(event, spine=None) if imported and isinstance(event, StepCompleted) else event

    log = rewritten(records_in(made), change, chained=False)
    findings = asyncio.run(verify(log, chained=False, look=files_of)).findings
    assert any("/global_step_" in finding.what for finding in findings) is not imported


def test_a_log_that_was_copied_as_it_is_has_nothing_to_be_found(made: Path) -> None:
    log = rewritten(records_in(made), lambda decoded: decoded.event, chained=False)
    report = asyncio.run(verify(log, chained=False))
    assert {finding.rule for finding in report.findings} <= {"heads-remembered"}


def test_what_lies_at_a_service_is_counted_and_not_looked_at(made: Path) -> None:
    """To say nothing of files that are not here would look like a check."""

    def change(decoded: Decoded) -> Any:
        event = decoded.event
        if isinstance(event, WeightsPublished):
            return _replace(event, method=SERVICE, path="tinker://run/sampler_weights/v1")
        if isinstance(event, CheckpointCommitted):
            return _replace(event, files=(*event.files, FileRef(STATE, 1, "0")))
        return event

    log = rewritten(records_in(made), change, chained=False)
    report = asyncio.run(verify(log, chained=False, look=files_of))
    [counts] = [row.not_looked_at for row in report.experiments]
    assert set(counts) == {"checkpoints at a service", "weights at a service"}
    assert f"  not looked at: {counts['checkpoints at a service']} checkpoints at a service" in _report_text(report)
    assert "not looked at" not in _report_text(asyncio.run(verify(log, chained=False)))
