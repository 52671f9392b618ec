"""`rftd import-verl`, as a user runs it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from rftd.daemon.cli.verbs.import_verl import command
from rftd.daemon.config.loading import load_file
from rftd.workers.datasets.task import Task
from rftd.workers.devices.host import ANY_HOST

GRPO = str(Path(__file__).parents[4] / "golden" / "verl" / "grpo.sh")


def test_a_script_becomes_a_file_and_a_report(tmp_path: Path) -> None:
    out = tmp_path / "grpo.yaml"
    report = tmp_path / "report.txt"
    result = CliRunner().invoke(command, [GRPO, "-o", str(out), "--report", str(report), "--", "trainer.save_freq=50"])
    assert result.exit_code == 0, result.output
    assert result.output == ""
    spec = load_file(out, environ={"HOME": "/home/me"}, host=ANY_HOST).spec
    assert spec.stages[0].trainer.save_interval == 50 * 4
    lines = report.read_text().splitlines()
    assert any("mapped: trainer.save_freq=50 -> trainer.save_interval" in line for line in lines)
    assert any(line.startswith(f"{GRPO}:10:1: dropped: data.truncation=error (") for line in lines)
    assert "mapped" in lines[-1]
    assert "needs a person" in lines[-1]


def test_a_command_line_is_printed_and_its_report_is_apart() -> None:
    words = ["python3", "-m", "verl.trainer.main_ppo", "algorithm.adv_estimator=grpo", "data.train_files=d/train.jsonl"]
    result = CliRunner().invoke(command, ["--", *words])
    assert result.exit_code == 0
    assert "algorithm_type: grpo  # algorithm.adv_estimator\n" in result.stdout
    assert "<command line>, word 4: mapped: algorithm.adv_estimator=grpo" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--", "algorithm.adv_estimater=grpo"], "<command line>, word 1"),
        (["--", "algorithm.adv_estimater=grpo"], "did you mean 'algorithm.adv_estimator'?"),
        (["missing.sh"], "no such file"),
        ([], "give a FILE, or a command line after `--`"),
        ([GRPO, "-o", "/nowhere/at/all.yaml"], "cannot be written"),
        ([GRPO, "--", "data.shufle=True"], "did you mean 'data.shuffle'?"),
        ([GRPO, "--assume", "=x"], "--assume =x names no variable: write --assume NAME=VALUE"),
        ([GRPO, "--take", "3", "--skip", "3"], "line 3 is given to --take and to --skip"),
        (["--"], "give a FILE, or a command line after `--`"),
    ],
)
def test_bad_input_ends_with_two(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 2
    assert said in result.output
    assert "Traceback" not in result.output
    assert result.stdout == ""


def test_choices_on_the_command_fill_gaps(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        'if [ "$BIG" = 1 ]; then\n  LEN=8192\nelse\n  LEN=1024\nfi\nTEST=$1\n'
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=d/train.jsonl "
        "data.max_response_length=$LEN trainer.test_freq=$TEST\n"
    )
    run = CliRunner().invoke
    assert "max_response_tokens: ???  # 8192 or 1024" in run(command, [str(script)]).stdout
    chosen = run(command, [str(script), "--assume", "BIG=1", "--assume", "1=5"]).stdout
    assert "max_response_tokens: 8192  #" in chosen
    assert "eval_interval: 20  #" in chosen
    assert "max_response_tokens: 1024  #" in run(command, [str(script), "--take", "4"]).stdout
    assert "max_response_tokens: 1024  #" in run(command, [str(script), "--skip", "2"]).stdout
    overridden = run(command, [str(script), "--", "data.max_response_length=5"]).stdout
    assert "max_response_tokens: 5  #" in overridden


@pytest.fixture
def scored(tmp_path: Path) -> Path:
    """A script with a reward function of its own."""
    (tmp_path / "length-reward.py").write_text(
        "def score_length(data_source, solution_str, ground_truth, extra_info=None, scale=1.0):\n"
        '    return {"score": scale * (len(solution_str) - int(ground_truth)), "of": data_source}\n'
    )
    script = tmp_path / "run.sh"
    script.write_text(
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=d/train.jsonl "
        "custom_reward_function.path=./length-reward.py custom_reward_function.name=score_length "
        "+custom_reward_function.reward_kwargs.scale=0.5\n"
    )
    return script


def test_a_reward_function_becomes_a_plug_in_and_the_file_keeps_its_gap(scored: Path, tmp_path: Path) -> None:
    folder = tmp_path / "plugin"
    result = CliRunner().invoke(command, [str(scored), "--plugin", str(folder)])
    assert result.exit_code == 0, result.output
    assert "default_reward_fn_type: ???" in result.stdout
    assert f"pip install {folder}, and write default_reward_fn_type: score_length" in result.stderr
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["rftd.rewards"]["score_length"].partition(":")
    task = Task(taskset="t", row=0, epoch=0, prompt="p", messages=(), truth="3", workflow="w", raw={"data_source": "x"})
    program = f"import sys, msgspec; sys.path.insert(0, {str(folder)!r})\n"
    program += "from rftd.workers.datasets.task import Task\n"
    program += f"import {module}\ntask = msgspec.convert({msgspec.to_builtins(task)!r}, Task)\n"
    program += f"print({module}.{name}().score('abcdefg', '3', task))\n"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "2.0\n"


def test_a_plug_in_is_written_for_a_reward_and_into_an_empty_folder_alone(scored: Path, tmp_path: Path) -> None:
    none = CliRunner().invoke(command, [GRPO, "--plugin", str(tmp_path / "new")])
    assert none.exit_code == 2
    assert "gives no custom_reward_function.path" in none.output
    full = CliRunner().invoke(command, [str(scored), "--plugin", str(tmp_path)])
    assert full.exit_code == 2
    assert "is not empty, choose another folder" in full.output
    scored.with_name("length-reward.py").unlink()
    bare = CliRunner().invoke(command, [str(scored), "--plugin", str(tmp_path / "bare")])
    assert "copy ./length-reward.py to" in bare.stderr
