"""A checkpoint that its trainer was still writing remembers the log, as one in its place does."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from synthetic.log.synthetic_run import spec_of

from rftd.storage.files.checkpoint_witness import CheckpointWitness, write_witness
from rftd.storage.files.survivors import of_checkpoints, put_workplaces_aside
from rftd.streams.events.experiment import HeadRef
from rftd.streams.log.chain import Mark
from rftd.streams.log.topics import Partition

ONE, OTHER = UUID(int=1), UUID(int=2)
SPINE = Partition("rftd.experiments", 0)


def _left(path: Path, *, experiment: UUID = ONE) -> Path:
    """A folder that remembers 40 records of the spine."""
    path.mkdir(parents=True)
    heads = (HeadRef(*SPINE, 40, b"chain"),)
    write_witness(path, CheckpointWitness(experiment=experiment, step=2, generation=0, heads=heads, spine=None))
    return path


@pytest.mark.parametrize(
    "place",
    [
        ".trainer-e3/global_step_2",
        ".trainer-e3/global_step_2.old",
        ".trainer-e3/global_step_2.gone",
        ".trainer-e4/.trainer-e3/global_step_2",
    ],
)
def test_what_lies_in_a_workplace_is_heard(tmp_path: Path, place: str) -> None:
    path = _left(tmp_path / place)
    [heard] = of_checkpoints(spec_of("one", 3, str(tmp_path)), ONE)
    assert heard.by.startswith(str(path))
    assert heard.heads == {SPINE: Mark(40, b"chain")}


def test_what_is_torn_or_of_another_experiment_is_not(tmp_path: Path) -> None:
    _left(tmp_path / ".trainer-e3" / "global_step_2", experiment=OTHER)
    torn = _left(tmp_path / ".trainer-e4" / "global_step_3") / "log.json"
    torn.write_bytes(torn.read_bytes()[:-20])
    (tmp_path / ".trainer-e4" / "latest_checkpointed_iteration.txt").write_text("3")
    assert of_checkpoints(spec_of("one", 3, str(tmp_path)), ONE) == []


def test_it_does_not_speak_of_the_log_that_the_experiment_is_imported_into(tmp_path: Path) -> None:
    unfinished = _left(tmp_path / ".trainer-e3" / "global_step_2")
    replaced = _left(tmp_path / ".trainer-e3" / "global_step_1.old")
    put_workplaces_aside([tmp_path, tmp_path / "absent"])
    assert [path.name for path in unfinished.iterdir()] == ["log.json.before-import"]
    assert (replaced / "log.json").exists(), "it may be put back under its name, whole"
