"""`rftd config show` and `check`, as a user runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from rftd.daemon.cli.verbs.config import config_group
from rftd.daemon.config.loading import check_config

EXAMPLE = str(Path(__file__).parents[5] / "examples" / "gsm8k.yaml")
EXAMPLES = [str(each) for each in sorted(Path(EXAMPLE).parent.glob("*.yaml"))]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine shows no GPU, whatever it has, and nothing listens at the daemon's address."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("RFTD_SERVER", "http://127.0.0.1:1")


def test_show_prints_the_current_spelling(tmp_path: Path) -> None:
    file = tmp_path / "old.yaml"
    file.write_text(Path(EXAMPLE).read_text().replace("batch_size: 128", "default_reward_fn_type: math_reward"))
    result = CliRunner().invoke(config_group, ["show", "--given", str(file), "-s", "name=x"])
    assert result.exit_code == 0
    shown = yaml.safe_load(result.stdout)
    assert shown["name"] == "x"
    assert shown["buffer"]["explorer_input"]["default_reward_fn_type"] == "math_reward"


@pytest.mark.parametrize("given", [(), ("--given",)])
def test_a_text_with_an_interpolation_is_shown_so_that_it_is_read_again(tmp_path: Path, given: tuple[str, ...]) -> None:
    as_text = ("-s", "labels={a: '\\${oc.env:HOME}'}")
    shown = CliRunner().invoke(config_group, ["show", EXAMPLE, *as_text, *given]).stdout
    file = tmp_path / "shown.yaml"
    file.write_text(shown)
    assert CliRunner().invoke(config_group, ["show", str(file), *given]).stdout == shown
    for source in ([EXAMPLE, *as_text], [str(file)]):
        data = json.loads(CliRunner().invoke(config_group, ["show", *source, "--json", *given]).stdout)
        assert check_config(data).labels == {"a": "${oc.env:HOME}"}


@pytest.mark.parametrize("given", [(), ("--given",)])
def test_shown_json_is_what_the_daemon_takes(given: tuple[str, ...]) -> None:
    result = CliRunner().invoke(config_group, ["show", EXAMPLE, "--json", *given])
    assert check_config(json.loads(result.stdout)).project == "gsm8k"


@pytest.mark.parametrize("given", [(), ("--given",)])
def test_show_from_standard_input_can_be_read_again(given: tuple[str, ...]) -> None:
    first = CliRunner().invoke(config_group, ["show", "-", *given], input=Path(EXAMPLE).read_text())
    second = CliRunner().invoke(config_group, ["show", "-", *given], input=first.stdout)
    assert first.exit_code == 0
    assert second.stdout == first.stdout


def test_show_prints_what_runs_here_and_what_follows() -> None:
    shown = yaml.safe_load(CliRunner().invoke(config_group, ["show", EXAMPLE]).stdout)
    assert shown["trainer"]["trainer_type"] == "torch"
    assert shown["synchronizer"]["sync_method"] == "checkpoint"
    assert shown["algorithm"]["policy_loss_fn_args"]["clip_ratio_c"] == 3.0
    assert shown["derived"]["stages"]["main"]["batch"]["experiences_per_training_step"] == 1024


def test_origins_are_comments_or_a_mapping_of_their_own() -> None:
    text = CliRunner().invoke(config_group, ["show", EXAMPLE, "--origin", "-s", "buffer.batch_size=4"]).stdout
    assert "  batch_size: 4  # -s buffer.batch_size\n" in text
    told = json.loads(CliRunner().invoke(config_group, ["show", EXAMPLE, "--origin", "--json"]).stdout)
    assert told["origin"]["buffer.train_batch_size"] == "derived"
    assert told["config"]["buffer"]["train_batch_size"] == 1024
    assert CliRunner().invoke(config_group, ["show", EXAMPLE, "--origin", "--given"]).exit_code == 2


def test_check_says_ok_and_warns_on_the_other_stream() -> None:
    result = CliRunner().invoke(config_group, ["check", EXAMPLE])
    assert result.exit_code == 0
    assert result.stdout.startswith("ok: gsm8k/grpo, main (grpo, 1 epoch)")
    assert "warning: " in result.stderr
    assert "nccl" in result.stderr


def test_check_hears_of_the_devices_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = tmp_path / "nvidia-smi"
    driver.write_text(f"#!{sys.executable}\nprint('0, GPU-a, NVIDIA L4, 23034')\n")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    result = CliRunner().invoke(config_group, ["check", EXAMPLE])
    assert result.exit_code == 2
    assert "1 x 2 = 2 GPUs, but the workers' machine has 1 GPU (NVIDIA L4 0)" in result.stderr
    assert CliRunner().invoke(config_group, ["show", EXAMPLE]).exit_code == 2, "it would not run here"
    assert CliRunner().invoke(config_group, ["show", "--given", EXAMPLE]).exit_code == 0, "it only prints the file"


HEAVY = [
    *("aiokafka", "aiosqlite", "alembic", "asyncio", "asyncpg", "httpx", "jinja2", "litestar", "numpy", "psutil"),
    *("pygments", "ray", "rich", "sqlalchemy", "starlette", "sympy", "tinker", "tokenizers", "torch", "transformers"),
    *("uvicorn", "verl", "vllm"),
]
"""Libraries that a check needs not, and that take longer to import than the check itself takes.

Arrays are imported where they are made: what declares arguments, of a policy or an advantage, needs none for that.
"""


def test_a_check_imports_nothing_heavy() -> None:
    program = f"""
import sys
from click.testing import CliRunner
from rftd.daemon.cli.verbs.config import config_group
for file in {EXAMPLES!r}:
    for verb in ("check", "show"):
        assert CliRunner().invoke(config_group, [verb, file]).exit_code == 0
print(*sorted(set(sys.modules) & set({HEAVY!r})))
"""
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=300)
    assert (done.stdout.split(), done.stderr) == ([], "")


@pytest.mark.parametrize("verb", ["show", "check"])
def test_errors_end_with_two(verb: str) -> None:
    result = CliRunner().invoke(config_group, [verb, EXAMPLE, "-s", "buffer.batchsize=2", "-s", "mode=bot"])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "did you mean 'batch_size'?" in result.stderr
    assert "did you mean 'both'?" in result.stderr


def test_errors_as_json() -> None:
    result = CliRunner().invoke(config_group, ["check", EXAMPLE, "--json", "-s", "mode=bot"])
    assert result.exit_code == 2
    found = json.loads(result.stdout)
    assert found["ok"] is False
    assert found["errors"][0]["code"] == "RFTD-CFG-005"
    assert found["errors"][0]["field"] == "mode"
