"""The guide's own experiments resolve to what is kept beside this test; a change of meaning shows as a difference."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from rftd.daemon.config.loading import Submission, check_config, load_file
from rftd.streams.events.experiment import ExperimentSubmitted
from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.devices.host import Host

ROOT = Path(__file__).parents[4]
GOLDEN = ROOT / "tests" / "golden" / "config"
NO_GPU = Host(name="laptop", no_gpu="nvidia-smi not found")
EXAMPLE = ROOT / "examples" / "gsm8k.yaml"
STAGES = """
stages:
  - stage_name: sft_warmup
    mode: train
    algorithm:
      algorithm_type: sft
    buffer:
      train_batch_size: 128
      total_steps: 10
      trainer_input:
        experience_buffer:
          name: sft_warmup_dataset
          path: /PATH/TO/YOUR/SFT/DATASET
  - stage_name: rft # leave empty to use the original configs for RFT
"""


def _load(name: str, folder: Path) -> Submission:
    file = EXAMPLE
    if name == "gsm8k_stages":
        file = folder / "gsm8k.yaml"
        file.write_text(EXAMPLE.read_text() + STAGES)
    return load_file(file, environ={}, cwd=Path("/home/user"), host=NO_GPU)


@pytest.mark.parametrize("name", ["gsm8k", "gsm8k_stages"])
def test_the_quick_start_resolves_to_its_golden_specification(name: str, tmp_path: Path) -> None:
    submission = _load(name, tmp_path)
    expected = msgspec.json.decode((GOLDEN / f"{name}.json").read_bytes(), type=ExperimentSpec)
    assert submission.spec == expected


@pytest.mark.parametrize("name", ["gsm8k", "gsm8k_stages"])
def test_the_daemon_resolves_what_the_client_sends_to_the_same(name: str, tmp_path: Path) -> None:
    submission = _load(name, tmp_path)
    sent = json.loads(json.dumps(submission.config))
    assert check_config(sent, host=NO_GPU) == submission.spec


def test_the_specification_travels_as_an_event(tmp_path: Path) -> None:
    event = ExperimentSubmitted(spec=_load("gsm8k_stages", tmp_path).spec)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=ExperimentSubmitted) == event


def test_the_guides_variables_are_read_from_the_environment() -> None:
    environ = {
        "TRINITY_CHECKPOINT_ROOT_DIR": "/ckpt",
        "TRINITY_MODEL_PATH": "/models/tiny",
        "TRINITY_TASKSET_PATH": "data/gsm8k/train.jsonl",
    }
    spec = load_file(EXAMPLE, environ=environ, cwd=Path("/home/user")).spec
    (stage,) = spec.stages
    assert stage.taskset is not None
    assert spec.job_dir == "/ckpt/gsm8k/grpo" == stage.folder
    assert stage.model.path == "/models/tiny"
    assert stage.taskset.path == "/home/user/data/gsm8k/train.jsonl"


def test_the_test_of_the_issue_is_a_matter_of_overrides() -> None:
    overrides = [
        "model.model_path=/tiny",
        "buffer.batch_size=4",
        "algorithm.repeat_times=4",
        "buffer.total_steps=2",
        "model.max_response_tokens=32",
        "buffer.explorer_input.eval_tasksets[0].limit_rows=16",
    ]
    (stage,) = load_file(EXAMPLE, overrides=overrides, environ={}, cwd=Path("/w")).spec.stages
    assert (stage.total_steps, stage.total_epochs, stage.train_batch_size) == (2, 0, 16)
    assert stage.evals[0].limit_rows == 16
    assert stage.evals[0].sampling.max_tokens == 32


def test_the_whole_guide_in_its_own_spelling() -> None:
    environ = {
        "MODEL_PATH": "/models/m",
        "TRINITY_TASKSET_PATH": "/data/tasks",
        "TRINITY_SFT_DATASET_PATH": "/data/aux",
        "TRINITY_DATASET_PATH": "/data/sft",
        "WANDB_API_KEY": "canary",
    }
    submission = load_file(GOLDEN / "guide.yaml", environ=environ, cwd=Path("/home/user"))
    warm, rft = submission.spec.stages
    assert warm.dataset is not None
    assert warm.dataset.path == "/data/sft"
    assert (warm.total_steps, warm.train_batch_size, rft.total_steps, rft.train_batch_size) == (100, 64, 1000, 256)
    assert (rft.policy.max_staleness_versions, rft.policy.max_inflight_batches) == (9, 10)
    assert submission.config["model"]["critic_model_path"] == "/models/m"
    assert submission.config["monitor"]["monitor_args"]["api_key"] == {"env": "WANDB_API_KEY"}
    without = sorted(text.split(" ")[0] for text in submission.spec.warnings if "has no effect" in text)
    assert without == [
        "buffer.trainer_input.auxiliary_buffers.sft_dataset",
        "buffer.trainer_input.experience_buffer.name",
        "buffer.trainer_input.experience_buffer.path",
        "model.critic_model_path",
    ]
