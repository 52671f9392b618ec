"""The doctor finds what is wrong: each fault is seeded for real, and must be told under its check, with its fix."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from synthetic.daemon.command_line import Rftd, Served
from synthetic.daemon.doctor_faults import FAULTS, Fault
from synthetic.daemon.doctor_world import DoctorWorld

from rftd.workers.models.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that nobody spoils."""
    return make_tiny_model(tmp_path_factory.mktemp("model"), seed=1)


@pytest.fixture
def world(
    tmp_path: Path, tiny: Path, served: Served, guarded: Served, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DoctorWorld]:
    for name in ("RFTD_KAFKA", "RFTD_POSTGRES", "RFTD_TOKEN", "RFTD_RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with ExitStack() as stack:
        yield DoctorWorld(tmp_path, tiny, served, guarded, monkeypatch, stack)


def found(checks: list[dict[str, str]], fault: Fault) -> list[dict[str, str]]:
    return [
        each
        for each in checks
        if (each["check"], each["status"]) == (fault.check, fault.status)
        and all(word in f"{each['what']}\n{each['fix']}" for word in fault.words)
    ]


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_the_doctor_finds_it_and_says_what_to_do(rftd: Rftd, world: DoctorWorld, fault: Fault) -> None:
    words = ["doctor", *fault.seed(world), "--json"]
    if fault.python:
        command = [sys.executable, "-P", *fault.python, "-m", "rftd.daemon", *words]
        done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), check=False, timeout=120)
        out = done.stdout
        status = done.returncode
    else:
        said = rftd(*words)
        out = said.out
        status = said.status
    report = json.loads(out)
    told = found(report["checks"], fault)
    assert len(told) == 1, json.dumps(report["checks"], indent=1)
    assert told[0]["fix"], told
    failed = any(each["status"] == "fail" for each in report["checks"])
    assert (status, report["ok"]) == ((1, False) if failed else (0, True))
    assert failed or fault.status == "warn"


def test_a_sound_machine_and_a_sound_file_have_none_of_them(rftd: Rftd, world: DoctorWorld) -> None:
    world.patch.setenv("RFTD_TOKEN", "right")
    said = rftd("doctor", *world.experiment(), "--server", world.guarded.url, "--json")
    assert said.status == 0, said.out
    report = json.loads(said.out)
    assert not [each for each in report["checks"] if each["status"] == "fail"]
    assert not [name for name, fault in FAULTS.items() if found(report["checks"], fault)]
    told = {each["check"]: each["what"] for each in report["checks"] if each["status"] == "ok"}
    assert told["tokenizer"] == f"read from {world.model}"
    assert told["prompts"].endswith("of 400 that fit")
    assert "there is room for 1 checkpoint of" in told["checkpoints"]
    assert "8 rows can be read" in told["dataset"]
    assert {
        "clock",
        "limits",
        "folder",
        "artifacts",
        "socket",
        "durability",
        "token",
        "allowed",
        "keeping",
        "monitor",
    } <= told.keys()
    assert sorted(each.name for each in world.folder.iterdir()) == ["mine.yaml", "train.jsonl"], "nothing is left"


def test_a_wrong_command_line_is_no_finding(rftd: Rftd, world: DoctorWorld) -> None:
    for words in (["--server", "ftp://x"], ["--log", "nowhere"], ["a.yaml", "b.yaml"], ["none.yaml"], ["-s", "name=x"]):
        assert rftd("doctor", *words).status == 2, words
