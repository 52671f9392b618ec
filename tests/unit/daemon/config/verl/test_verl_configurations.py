"""Configurations that `--config-name` and `defaults` name: veRL's own, the user's files, and those a script writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rftd.daemon.config.issue import ConfigErrors
from rftd.daemon.config.verl.importing import ImportedExperiment, import_command, import_file, import_script
from rftd.daemon.config.verl.table import TABLES

KEYS = "algorithm.adv_estimator=grpo data.train_files=./d/train.jsonl actor_rollout_ref.model.path=./m"
RUN = f"python3 -m verl.trainer.main_ppo {KEYS} "
MINE = """\
hydra:
  searchpath: [file://verl/trainer/config]
defaults:
  - ppo_megatron_trainer
  - _self_
data:
  max_response_length: 1024
  train_batch_size: 64
actor_rollout_ref:
  actor:
    ppo_mini_batch_size: ${data.train_batch_size}
  rollout:
    n: 8
"""


def fields(imported: ImportedExperiment) -> dict[str, Any]:
    tree: dict[str, Any] = yaml.safe_load(imported.text)
    return tree


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A script beside a folder of its own configurations."""
    folder = tmp_path / "examples" / "multi" / "config"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(MINE)
    return tmp_path / "examples" / "multi" / "run.sh"


def run(script: Path, options: str) -> ImportedExperiment:
    script.write_text(f"{RUN} {options}\n")
    return import_file(script)


@pytest.mark.parametrize("option", ["--config-name=ppo_megatron_trainer.yaml", "--config-name 'ppo_megatron_trainer'"])
def test_verls_own_configurations_have_their_values(option: str) -> None:
    imported = import_script(f"{RUN} {option}", "run.sh")
    assert fields(imported)["trainer"]["trainer_strategy"] == "megatron"
    # What it says of a critic is no key of the script, and there is none to lose.
    assert [str(line) for line in imported.lines if line.key.startswith("critic.")] == []


def test_a_key_of_the_command_wins_over_a_configuration() -> None:
    imported = import_script(f"{RUN} actor_rollout_ref.actor.strategy=fsdp2 -cn ppo_megatron_trainer", "run.sh")
    assert fields(imported)["trainer"]["trainer_strategy"] == "fsdp2"


@pytest.mark.parametrize(
    "options",
    [
        "--config-path=config --config-name=mine",
        "--config-path ./config --config-name mine.yaml",
        "--config-path=examples/multi/config --config-name=mine",
        '--config-path="$PROJECT/examples/multi/config" --config-name=mine',
        '--config-path="$(git rev-parse --show-toplevel)/examples/multi/config" --config-name=mine',
    ],
)
def test_a_file_of_the_users_is_found_from_the_script(script: Path, options: str) -> None:
    imported = run(script, f"{options} data.train_batch_size=32")
    tree = fields(imported)
    assert tree["trainer"]["trainer_strategy"] == "megatron"
    assert tree["model"]["max_response_tokens"] == 1024
    assert tree["algorithm"]["repeat_times"] == 8
    # A reference of the file follows the command line.
    assert tree["buffer"]["batch_size"] == 32
    places = {line.key.partition("=")[0]: str(line.place) for line in imported.lines}
    assert places["actor_rollout_ref.rollout.n"].endswith("config/mine.yaml:13:8")


@pytest.mark.parametrize("home", ["recipe/dapo", "dapo"])
@pytest.mark.parametrize(
    ("program", "folder"),
    [
        ("-m recipe.dapo.main_dapo", "config"),
        ("recipe/dapo/main_dapo.py", "./config"),
        ("./recipe/dapo/main_dapo.py", "config"),
        ("-m recipe.dapo.main_dapo", '"$VERL/recipe/dapo/config"'),
    ],
)
def test_a_folder_is_beside_the_program_of_a_recipe(tmp_path: Path, home: str, program: str, folder: str) -> None:
    """Recipes are in veRL's repository, and in one of their own without the folder `recipe`."""
    config = tmp_path / home / "config"
    config.mkdir(parents=True)
    (config / "mine.yaml").write_text("actor_rollout_ref: {rollout: {n: 3}}\n")
    script = tmp_path / "other" / "run.sh"
    script.parent.mkdir()
    script.write_text(f"python3 {program} {KEYS} --config-path={folder} --config-name=mine\n")
    assert fields(import_file(script))["algorithm"]["repeat_times"] == 3


def test_a_folder_that_is_named_is_looked_in_first(script: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.yaml").write_text("actor_rollout_ref: {rollout: {n: 3}}\n")
    script.write_text(f"{RUN} --config-path=config --config-name=mine\n")
    assert fields(import_file(script, config_dir=other))["algorithm"]["repeat_times"] == 3
    command = ["python3", "-m", "verl.trainer.main_ppo", *KEYS.split(), "--config-name=mine"]
    assert fields(import_command(command, config_dir=other))["algorithm"]["repeat_times"] == 3


def test_a_here_document_is_a_file_of_the_script() -> None:
    text = f"N=6\nmkdir -p conf\ncat > conf/mine.yaml <<EOF\n{MINE.replace('n: 8', 'n: $N')}EOF\n"
    text = text.replace("${data.", "\\${data.")
    imported = import_script(f"{text}{RUN} --config-path=conf --config-name=mine", "run.sh")
    assert fields(imported)["algorithm"]["repeat_times"] == 6
    assert fields(imported)["buffer"]["batch_size"] == 64


def test_what_is_wrong_in_a_file_is_shown_in_that_file(script: Path) -> None:
    (script.parent / "config" / "mine.yaml").write_text("data:\n  train_batch_sise: 4\n")
    with pytest.raises(ConfigErrors) as caught:
        run(script, "--config-path=config --config-name=mine")
    assert "config/mine.yaml:2:" in str(caught.value)
    assert "did you mean 'data.train_batch_size'?" in str(caught.value)
    assert "python3" not in str(caught.value)


def test_files_that_name_one_another_come_to_an_end(script: Path) -> None:
    (script.parent / "config" / "mine.yaml").write_text("defaults: [mine]\ndata: {seed: 1}\n")
    with pytest.raises(ConfigErrors) as caught:
        run(script, "--config-path=config --config-name=mine")
    assert "includes itself" in str(caught.value)


def test_each_configuration_is_known_by_its_name() -> None:
    names = list(TABLES.configurations)
    assert {"ppo_trainer", "ppo_megatron_trainer", "ppo_veomni_trainer"} <= set(names)
    assert TABLES.configurations["ppo_trainer"] == {}
    assert "nobodys" not in names
