"""Checkpoints from a Python program: listed, downloaded in ranges, checked, and gone on with after an interruption."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from synthetic.daemon.command_line import Served
from synthetic.daemon.served_daemon import served_daemon
from synthetic.log.recorder import Recorder
from synthetic.log.saved_run import CONTENT, NAME, SavedRun

import rftd
from rftd.daemon.http.client import downloads
from rftd.ops.errors import DataError


@pytest.fixture
def saved(tmp_path: Path) -> Iterator[Served]:
    run = SavedRun(Recorder(), name="saved", job_dir=str(tmp_path / "job"), faults=False).write()
    with served_daemon(tmp_path, run=run) as served:
        yield served


def test_a_checkpoint_is_downloaded_and_gone_on_with(
    saved: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "_RANGE_BYTES", 500_000)
    to = tmp_path / "mine"
    with rftd.Client(saved.url) as client:
        run = client.run("saved")
        assert [row.step for row in run.checkpoints()] == [5, 2]
        (to / "actor").mkdir(parents=True)
        (to / f"{NAME}.part").write_bytes(CONTENT[:1_234_567])
        assert run.download(5, to) == to
        assert {path.name: path.read_bytes() for path in to.rglob("*") if path.is_file()} == {
            "model.safetensors": CONTENT,
            "empty": b"",
        }
        (to / NAME).unlink()
        (to / f"{NAME}.part").write_bytes(b"damaged")
        with pytest.raises(DataError, match="differ from the committed"):
            run.download(5, to)
        assert run.download(5, to)
        assert (to / NAME).read_bytes() == CONTENT
