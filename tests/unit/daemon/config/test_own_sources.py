"""Python files of rewards and workflows: read by the client, part of the file, checked without running."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from synthetic.daemon.fork_desk import EXPERIMENT

from rftd.daemon.config.effective.experiment import effective_config
from rftd.daemon.config.issue import ConfigErrors
from rftd.daemon.config.loading import check_config, load_text
from rftd.ops import limits
from rftd.workers.training.extensions import extensions_of

REWARD = "buffer.explorer_input.taskset.default_reward_fn_type"
TEXT = "def short(response, truth):\n    return -len(response)\n"


def loaded(folder: Path, *overrides: str) -> Any:
    return load_text(EXPERIMENT, "test.yaml", overrides=overrides, environ={}, cwd=folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(TEXT)
    return tmp_path


def test_the_text_of_a_file_travels_with_the_experiment(folder: Path) -> None:
    submission = loaded(folder, _reward("./mine.py:short"))
    (folder / "mine.py").unlink()
    assert submission.config["sources"] == {"mine.py": TEXT}
    spec = check_config(submission.config)
    exploring = next(stage for stage in spec.stages if stage.kind == "both")
    assert exploring.sources == {"mine.py": TEXT}
    assert exploring.taskset is not None
    assert exploring.taskset.reward == "mine.py:short"
    assert all(not stage.sources for stage in spec.stages if stage.kind == "train")
    again = check_config(yaml.safe_load(yaml.safe_dump(effective_config(spec))))
    assert next(stage for stage in again.stages if stage.kind == "both").sources == {"mine.py": TEXT}


@pytest.mark.parametrize(
    ("named", "content", "problem"),
    [
        ("./gone.py:short", None, "cannot be read"),
        ("./1mine.py:short", TEXT, "no name of a Python module"),
        ("./mine.py:shrt", TEXT, "did you mean 'short'?"),
        ("./mine.py:short", "def short(:\n", "mine.py:1: is no Python"),
        ("./mine.py:short", b"\xff\xfe", "no UTF-8"),
        ("./mine.py:short", "#" * (limits.SOURCE_SIZE_BYTES + 1), "is larger than 65,536 bytes"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_at_its_field(
    folder: Path, named: str, content: str | bytes | None, problem: str
) -> None:
    if content is not None:
        content = content if isinstance(content, bytes) else content.encode()
        (folder / named.partition(":")[0]).write_bytes(content)
    with pytest.raises(ConfigErrors) as refused:
        loaded(folder, _reward(named))
    assert problem in str(refused.value)
    assert "default_reward_fn_type" in str(refused.value)


def test_files_of_losses_and_agents_travel_with_the_stages_naming_them(folder: Path) -> None:
    (folder / "losses.py").write_text("def half(tokens): ...\n")
    (folder / "agents.py").write_text("async def solve(task, base_url, api_key): ...\n")
    submission = loaded(
        folder,
        "algorithm.policy_loss_fn=./losses.py:half",
        "buffer.explorer_input.taskset.default_workflow_type=agent_program_workflow",
        "buffer.explorer_input.taskset.workflow_args={agent: ./agents.py:solve}",
        "stages=[{stage_name: rft}]",
    )
    spec = check_config(submission.config)
    assert set(spec.stages[-1].sources) == {"losses.py", "agents.py"}
    assert spec.stages[-1].algorithm.policy_loss == "losses.py:half"
    again = check_config(yaml.safe_load(yaml.safe_dump(effective_config(spec))))
    assert again.stages[-1].sources == spec.stages[-1].sources
    assert extensions_of(spec) == {}


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("algorithm.policy_loss_fn=./losses.py:hlf", "did you mean 'half'?"),
        ("algorithm.policy_loss_fn=./gone.py:half", "cannot be read"),
        ("buffer.explorer_input.taskset.workflow_args={agent: ./losses.py:solve}", "defines no 'solve'"),
    ],
)
def test_an_unusable_loss_or_agent_is_refused_at_its_field(folder: Path, override: str, problem: str) -> None:
    (folder / "losses.py").write_text("def half(tokens): ...\n")
    workflow = "buffer.explorer_input.taskset.default_workflow_type=agent_program_workflow"
    with pytest.raises(ConfigErrors) as refused:
        loaded(folder, workflow, override, "stages=[{stage_name: rft}]")
    assert problem in str(refused.value)
    assert override.partition("=")[0].rpartition(".")[2] in str(refused.value)


def test_two_files_of_one_name_are_refused(folder: Path) -> None:
    (folder / "other").mkdir()
    (folder / "other/mine.py").write_text(TEXT + "#\n")
    with pytest.raises(ConfigErrors, match="with different content"):
        loaded(
            folder,
            _reward("./mine.py:short"),
            "buffer.explorer_input.default_workflow_type=./other/mine.py:short",
        )


def test_a_daemon_never_opens_a_file_named_by_a_client(folder: Path) -> None:
    config = loaded(folder).config
    for named in (f"{folder}/mine.py:short", "mine.py:short"):
        changed = yaml.safe_load(yaml.safe_dump(config))
        changed["buffer"]["explorer_input"]["taskset"]["default_reward_fn_type"] = named
        with pytest.raises(ConfigErrors, match="which `sources` does not hold"):
            check_config(changed)


def _reward(named: str) -> str:
    return f"{REWARD}={named}"
