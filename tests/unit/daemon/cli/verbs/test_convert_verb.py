"""`rftd convert` says what became of each checkpoint, and fails if one could not be converted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from synthetic.models.foreign_checkpoints import small_model, write_fsdp

from rftd.daemon.cli.cli import main


def test_convert_goes_on_after_a_failure_and_exits_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (2, 4, 6):
        write_fsdp(tmp_path / "run" / f"global_step_{step}" / "actor", small_model(layers=1), ranks=2)
    missing = tmp_path / "run" / "global_step_4" / "actor" / "model_world_size_2_rank_1.pt"
    missing.unlink()
    monkeypatch.chdir(tmp_path)
    assert main(["convert", "--checkpoint-dir", "run", "--step", "2"]) == 0
    said = capsys.readouterr()
    assert "global_step_2  fsdp" in said.out
    assert "converted, " in said.out
    assert said.err == ""
    assert main(["convert", "-c", "run", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["failed"] == 1
    assert [(each["step"], each["state"]) for each in answer["items"]] == [
        (2, "present"),
        (4, "failed"),
        (6, "converted"),
    ]
    assert answer["items"][1]["error"]["where"] == str(missing)
    assert main(["convert", "-c", "run"]) == 1
    said = capsys.readouterr()
    assert said.out.count("converted already") == 2
    assert f"global_step_4  FAILED\nerror[RFTD-DAT-001] the file of rank 1 of 2 is missing\n  --> {missing}" in said.err
    assert main(["convert", "-c", "elsewhere"]) == 3
    assert "not a folder of checkpoints" in capsys.readouterr().err
