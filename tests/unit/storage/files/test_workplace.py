"""Workplaces: who was replaced finds neither source nor destination, and what it did before that is undone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from synthetic.log.synthetic_run import spec_of

from rftd.ops.errors import FencedError
from rftd.storage.files import workplace
from rftd.storage.files.checkpoints import commit_folder, place_folder, stage_folder, verify
from rftd.storage.files.unreferenced import Referenced, ours, remove, unreferenced
from rftd.storage.files.workplace import Workplace
from rftd.streams.events.checkpoint import FileRef


def saved(folder: Path, text: str) -> tuple[FileRef, ...]:
    return commit_folder(folder, lambda each: (each / "file").write_text(text) and None)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def check_the_ends_of(zombie: Workplace, successor: Workplace, named: Path, files: tuple[FileRef, ...]) -> None:
    """What events name is whole before either closes and between, and all that is left after both."""
    verify(named, files)
    zombie.close()
    verify(named, files)
    successor.close()
    verify(named, files)
    assert names(named.parent) == [named.name]


def test_a_woken_trainer_removes_nothing_once_its_workplace_was_taken(tmp_path: Path) -> None:
    folder = tmp_path / "global_step_3"
    files = saved(folder, "new")
    zombie, successor = Workplace(tmp_path, 1), Workplace(tmp_path, 2)
    zombie.open()
    assert successor.take_over({str(folder): files}) == []
    with pytest.raises(FencedError):
        zombie.discard([folder])
    check_the_ends_of(zombie, successor, folder, files)


@pytest.mark.parametrize("nested", [1, 2], ids=["its successor", "the one after a successor that died"])
def test_what_was_taken_from_its_name_is_put_back_if_events_name_it(tmp_path: Path, nested: int) -> None:
    named, retired = tmp_path / "global_step_3", tmp_path / "global_step_2"
    files = saved(named, "named")
    saved(retired, "retired")
    zombie = Workplace(tmp_path, 1)
    zombie.open()
    zombie.discard([named, retired, tmp_path / "was never there"])
    for epoch in range(2, 1 + nested):
        Workplace(tmp_path, epoch).take_over({})
    last = Workplace(tmp_path, 5)
    assert last.take_over({str(named): files}) == [named]
    check_the_ends_of(zombie, last, named, files)


@pytest.mark.parametrize("at_once", [True, False], ids=["exchanged", "renamed twice"])
def test_what_was_replaced_and_never_committed_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    from rftd.storage.files import checkpoints

    for module in (checkpoints, workplace):
        if not at_once:
            monkeypatch.setattr(module, "exchange", lambda _first, _second: False)
    folder = tmp_path / "global_step_3"
    files = saved(folder, "committed")
    zombie = Workplace(tmp_path, 3)
    zombie.open()
    place_folder(
        stage_folder(folder, lambda each: (each / "file").write_text("other") and None, within=zombie.path), folder
    )
    successor = Workplace(tmp_path, 4)
    assert successor.take_over({str(folder): files}) == [folder]
    check_the_ends_of(zombie, successor, folder, files)


def test_what_is_half_written_is_not_put_back(tmp_path: Path) -> None:
    folder = tmp_path / "global_step_3"
    files = saved(folder, "whole")
    shutil.rmtree(folder)
    before = Workplace(tmp_path, 1)
    before.open()
    (before.path / folder.name).mkdir()
    weights = tmp_path / "v1-g0-e1"
    (before.path / weights.name).mkdir()
    after = Workplace(tmp_path, 2)
    assert after.take_over({str(folder): files, str(weights): ()}) == []
    after.close()
    assert names(tmp_path) == []


def test_what_trainers_left_is_garbage_unless_it_is_all_there_is(tmp_path: Path) -> None:
    kept = saved(tmp_path / "global_step_3", "three")
    saved(tmp_path / "global_step_2", "two")
    dead = Workplace(tmp_path, 1)
    dead.open()
    dead.discard([tmp_path / "global_step_3", tmp_path / "global_step_2"])
    empty = Workplace(tmp_path, 2)
    empty.open()
    spec = spec_of("one", 1, str(tmp_path))
    named = Referenced(
        checkpoints=frozenset({str(tmp_path / "global_step_3")}),
        weights=frozenset(),
        artifacts=None,
        snapshots=False,
    )
    found = [each.path for each in unreferenced(ours(spec), named, before_ns=1 << 63)]
    assert found == [str(dead.path / "global_step_2.gone"), str(empty.path)]
    remove(found)
    assert names(tmp_path) == [".trainer-e1"]
    assert names(dead.path) == ["global_step_3.gone"]
    assert Workplace(tmp_path, 3).take_over({str(tmp_path / "global_step_3"): kept}) == [tmp_path / "global_step_3"]
