"""`rftd submit --dry-run` and `config check`: with a daemon, without one, and with what is none."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest
import yaml
from synthetic.daemon.command_line import Rftd, Served
from synthetic.daemon.experiment_files import config, overlaid
from synthetic.daemon.stranger import STRANGE, Said, Stranger

from rftd.daemon.http.views.commands import CheckReport, SubmitReceipt
from rftd.daemon.http.views.problem import Problem, ProblemPart
from rftd.workers.models.tiny_model import make_tiny_model

NOBODY = "http://127.0.0.1:1"
CHECKS = (["submit", "--dry-run"], ["config", "check"])


def problem(*parts: ProblemPart, status: int = 422, code: str = "RFTD-CFG-001") -> Said:
    """The answer of a daemon that refuses."""
    body = Problem(type="urn:x", title="t", status=status, detail="no", code=code, errors=parts)
    return Said(status, msgspec.json.encode(body))


@pytest.mark.parametrize("model", ["tiny", "missing"])
def test_without_a_daemon_the_memory_is_that_of_this_machine(rftd: Rftd, tmp_path: Path, model: str) -> None:
    make_tiny_model(tmp_path / "tiny", seed=1)
    file = tmp_path / "mine.yaml"
    sections = {"model": {"model_path": str(tmp_path / model), "max_model_len": 512, "max_prompt_tokens": 400}}
    file.write_text(yaml.safe_dump(overlaid(config(), sections)))
    words = ["submit", str(file), "--dry-run", "--server", NOBODY]
    said = rftd(*words)
    assert said.status == 0, said.err
    rows = json.loads(rftd(*words, "--json").out)["memory"]
    assert [row["role"] for row in rows] == (["trainer", "explorer"] if model == "tiny" else [])
    assert said.out.count("memory: ") == len(rows)


@pytest.mark.parametrize("verb", CHECKS)
def test_without_a_daemon_it_is_checked_here_only(rftd: Rftd, experiment_file: Path, verb: list[str]) -> None:
    said = rftd(*verb, str(experiment_file), "--server", NOBODY)
    assert said.status == 0, said.err
    assert f"checked here only: no daemon answers at {NOBODY}" in said.out
    assert "`rftd doctor FILE` looks at them here" in said.out
    as_json = json.loads(rftd(*verb, str(experiment_file), "--server", NOBODY, "--json").out)
    assert as_json["ok"] is True
    assert as_json["said"].startswith("checked here only")


@pytest.mark.parametrize("answer", STRANGE.values(), ids=STRANGE.keys())
def test_a_broken_answer_is_no_check(rftd: Rftd, stranger: Stranger, experiment_file: Path, answer: Said) -> None:
    stranger.answers = [answer]
    said = rftd("submit", "--dry-run", str(experiment_file), "--server", stranger.url)
    assert said.status == 4
    assert said.out == ""
    assert "none of rftd's" in said.err


def test_an_answer_that_breaks_off_is_no_check(rftd: Rftd, stranger: Stranger, experiment_file: Path) -> None:
    stranger.answers = [Said(200, b"{", {"Content-Length": "100", "Connection": "close"})]
    said = rftd("submit", "--dry-run", str(experiment_file), "--server", stranger.url)
    assert said.status == 4
    assert said.out == ""
    assert "checked here only" not in said.err


@pytest.mark.parametrize("verb", CHECKS)
def test_each_error_of_the_daemon_has_the_line_of_the_file(
    rftd: Rftd, stranger: Stranger, experiment_file: Path, verb: list[str]
) -> None:
    taskset = "buffer.explorer_input.taskset"
    stranger.answers = [
        problem(
            ProblemPart(code="RFTD-DAT-001", what="no such file", field=f"{taskset}.path", where="/t.jsonl"),
            ProblemPart(code="RFTD-CFG-005", what="no workflow", field=f"{taskset}.default_workflow_type"),
            ProblemPart(code="RFTD-DAT-001", what="no such model folder", field="model.model_path"),
        )
    ]
    said = rftd(*verb, str(experiment_file), "--server", stranger.url)
    assert said.status == 2
    assert said.out == ""
    for place in ("15:13, /t.jsonl", "16:30", "8:15"):
        assert f"--> {experiment_file}:{place}" in said.err
    assert "default_workflow_type: math_workflow" in said.err, "the line is shown"


@pytest.mark.parametrize("how", ["RFTD_SERVER", "--server", "--data", ".rftd"])
@pytest.mark.parametrize("verb", CHECKS)
def test_the_daemon_is_asked_wherever_its_address_stands(
    rftd: Rftd,
    experiment_file: Path,
    served: Served,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verb: list[str],
    how: str,
) -> None:
    before = rftd("ls", "--json").out
    words: list[str] = []
    if how != "RFTD_SERVER":
        monkeypatch.delenv("RFTD_SERVER")
        folder = tmp_path / how.strip("-")
        folder.mkdir()
        (folder / "endpoint.json").write_text(json.dumps({"url": served.url, "pid": os.getpid()}))
        words = {"--server": [how, served.url], "--data": [how, str(folder)], ".rftd": []}[how]
    said = rftd(*verb, str(experiment_file), *words)
    assert said.status == 0, said.err
    assert f"the daemon at {served.url} would accept it" in said.out
    assert rftd("ls", "--json", "--server", served.url).out == before


def test_config_check_asks_nobody_if_it_is_told_so(rftd: Rftd, experiment_file: Path) -> None:
    said = rftd("config", "check", str(experiment_file), "--here")
    assert said.status == 0, said.err
    assert "daemon" not in said.out
    assert "said" not in json.loads(rftd("config", "check", str(experiment_file), "--here", "--json").out)
    both = rftd("config", "check", str(experiment_file), "--here", "--server", NOBODY)
    assert both.status == 2
    assert "--here asks no daemon" in both.err


@pytest.mark.parametrize("verb", CHECKS)
def test_warnings_are_those_of_the_machine_that_judged(
    rftd: Rftd, stranger: Stranger, experiment_file: Path, monkeypatch: pytest.MonkeyPatch, verb: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    runs = "trainer.trainer_type is not set: torch trains, on the CPU: there is no GPU"
    there = "trainer.trainer_type is not set: torch trains, on a GPU: verl is not installed where workers run"
    alone = rftd(*verb, str(experiment_file), "--server", NOBODY)
    assert runs in alone.err
    stranger.answers = [
        Said(
            200,
            msgspec.json.encode(
                CheckReport(name="mine", job_dir="/c", warnings=[there], memory=[], resolved={}, cost=[])
            ),
        )
    ]
    asked = rftd(*verb, str(experiment_file), "--server", stranger.url)
    assert [line for line in asked.err.splitlines() if "trainer_type" in line] == [f"warning: {there}"]


def test_a_name_that_only_the_daemon_has_is_the_daemons_to_judge(
    rftd: Rftd, stranger: Stranger, experiment_file: Path
) -> None:
    experiment_file.write_text(experiment_file.read_text().replace("math_workflow", "their_workflow"))
    report = CheckReport(name="mine", job_dir="/c/p/mine", warnings=[], memory=[], resolved={}, cost=[])
    receipt = SubmitReceipt(id="i", name="mine", event="e", position="p", warnings=[])
    stranger.answers = [Said(200, msgspec.json.encode(report))]
    checked = rftd("submit", "--dry-run", str(experiment_file), "--server", stranger.url)
    assert checked.status == 0, checked.err
    assert "would accept it" in checked.out
    stranger.answers = [Said(202, msgspec.json.encode(receipt))]
    submitted = rftd("submit", str(experiment_file), "--server", stranger.url)
    assert submitted.status == 0, submitted.err
    for words in (["submit", "--dry-run"], ["submit"], ["config", "check"]):
        alone = rftd(*words, str(experiment_file), "--server", NOBODY)
        assert alone.status == 2, "nobody knows the name"
        assert "unknown workflow 'their_workflow'" in alone.err
        assert f"--> {experiment_file}:16:30" in alone.err


def test_what_a_daemon_refuses_of_what_is_wrong_here_too_has_its_line(
    rftd: Rftd, stranger: Stranger, experiment_file: Path
) -> None:
    experiment_file.write_text(experiment_file.read_text().replace("math_workflow", "their_workflow"))
    name = ProblemPart(
        code="RFTD-CFG-009", what="unknown workflow", field="buffer.explorer_input.taskset.default_workflow_type"
    )
    model = ProblemPart(code="RFTD-DAT-001", what="no such model folder", field="model.model_path")
    stranger.answers = [problem(name, model)]
    for words in (["submit", "--dry-run"], ["submit"]):
        said = rftd(*words, str(experiment_file), "--server", stranger.url)
        assert said.status == 2
        first, second = (said.err.index(f"--> {experiment_file}:{line}") for line in ("8:15", "16:30"))
        assert first < second, "in the order of the file"
