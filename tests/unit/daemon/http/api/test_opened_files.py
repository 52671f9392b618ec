"""Experiment files sent by `rftd studio FILE`: for five minutes, for the same token, and no more than 32."""

from __future__ import annotations

import pytest

from rftd.daemon.http.api.opened_files import LASTS_S, MOST_FILES, OpenedFiles
from rftd.ops.clock import ManualClock
from rftd.ops.errors import NotFoundError


def test_a_file_is_for_its_sender_and_for_five_minutes() -> None:
    clock = ManualClock()
    files = OpenedFiles(clock)
    id = files.add("exp.yaml", "name: a", "ann")
    assert files.of(id, "ann").text == "name: a"
    for stranger in ("ben", ""):
        with pytest.raises(NotFoundError):
            files.of(id, stranger)
    clock.advance(LASTS_S)
    with pytest.raises(NotFoundError):
        files.of(id, "ann")


def test_the_oldest_file_leaves_for_a_further_one() -> None:
    files = OpenedFiles(ManualClock())
    ids = [files.add("exp.yaml", str(number), "ann") for number in range(MOST_FILES + 1)]
    with pytest.raises(NotFoundError):
        files.of(ids[0], "ann")
    assert [files.of(id, "ann").text for id in ids[1:]] == [str(number) for number in range(1, MOST_FILES + 1)]
