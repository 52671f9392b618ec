"""The memory of workers is forecast at acceptance, micro-batches fit it, and what was chosen is never chosen anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from rftd.daemon.http.views.memory import memory_line, rows_of, with_peaks
from rftd.daemon.run.supervisor import memory_plan
from rftd.daemon.run.supervisor.memory_plan import as_before, with_memory
from rftd.streams.spec.spec import (
    AlgorithmSpec,
    ExperimentSpec,
    ModelSpec,
    RolloutSpec,
    StageSpec,
    TasksetSpec,
    TrainerSpec,
)
from rftd.workers.devices.host import ANY_HOST, Device, Host
from rftd.workers.learning.memory_needs import training_forecast
from rftd.workers.models.tiny_model import make_tiny_model

MIB = 1 << 20
LONGEST = 64


def host_of(memory_bytes: int) -> Host:
    """A machine of one processor with so much memory."""
    return Host(devices=(Device(kind="cpu", index=0, name="CPU", memory_bytes=memory_bytes),), no_gpu="there is none")


def spec_of(
    model: Path, *, written: bool = False, deterministic: bool = False, tokens: int = 4096, **engine: Any
) -> ExperimentSpec:
    stage = StageSpec(
        name="rft",
        kind="both",
        total_steps=10,
        batch_size=64,
        train_batch_size=256,
        taskset=TasksetSpec(name="t", path="/nowhere.jsonl"),
        algorithm=AlgorithmSpec(kind="grpo", advantage="grpo", policy_loss="ppo", repeat_times=4),
        model=ModelSpec(path=str(model), max_model_len=LONGEST, max_prompt_tokens=32, max_response_tokens=32),
        rollout=RolloutSpec(engine="torch"),
        trainer=TrainerSpec(max_tokens_per_micro_batch=tokens, micro_batch_written=written, engine_args=engine),
    )
    return ExperimentSpec(
        project="p", name="n", job_dir="/nowhere", stages=(stage,), deterministic=deterministic, config={}
    )


def peak_bytes(spec: ExperimentSpec) -> int:
    """The forecast of the trainer."""
    (stage,) = spec.stages
    return sum(need.size_bytes for need in training_forecast(stage, Path(stage.model.path)))


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), seed=0)


@pytest.fixture(autouse=True)
def _free(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the machine's memory is free, whatever this one is doing."""
    monkeypatch.setattr(memory_plan, "free_on", lambda device: 1 << 40)


def tokens_of(spec: ExperimentSpec) -> int:
    return spec.stages[0].trainer.max_tokens_per_micro_batch


def test_where_there_is_room_nothing_changes_and_the_table_is_recorded(tiny_model: Path) -> None:
    spec = spec_of(tiny_model)
    accepted = with_memory(spec, host_of(1 << 36))
    assert accepted.stages == spec.stages and accepted.warnings == ()
    trainer, explorer = rows_of(accepted.memory)
    assert (trainer.role, explorer.role) == ("trainer", "explorer")
    assert trainer.size_bytes == peak_bytes(spec)
    assert "weights" in trainer.needs and "activations of 4096 tokens" in trainer.needs
    assert memory_line(trainer).startswith("trainer of rft: ") and "64.0 GiB of CPU" in memory_line(trainer)
    trainer, explorer = rows_of(accepted.memory, {("trainer", "rft"): 3 << 30, ("explorer", "other"): 1 << 30})
    assert memory_line(trainer).endswith("; resident now: 3.0 GiB") and "resident" not in memory_line(explorer)
    trainer, explorer = with_peaks((trainer, explorer), {"trainer": 4 << 30})
    assert memory_line(trainer).endswith("; resident now: 3.0 GiB; resident before, at most: 4.0 GiB")
    assert "resident" not in memory_line(explorer)


def test_a_micro_batch_is_halved_until_it_fits_and_the_warning_has_the_sum(tiny_model: Path) -> None:
    spec = spec_of(tiny_model)
    half = spec_of(tiny_model, tokens=1024)
    explorer = with_memory(spec, host_of(1 << 36)).memory[1]
    beside_bytes = explorer.workers * sum(need.size_bytes for need in explorer.needs)
    accepted = with_memory(spec, host_of(int(peak_bytes(half) / 0.9) + beside_bytes + MIB // 8))
    assert tokens_of(accepted) == 1024
    assert accepted.stages[0].trainer.engine_args == {}
    (warning,) = accepted.warnings
    assert "1024 tokens instead of 4096 (trainer.max_token_len_per_gpu)" in warning
    (need,) = [need.what for need in accepted.memory[0].needs if "activations" in need.what]
    assert need == "activations of 1024 tokens"


def test_layers_are_computed_again_where_the_longest_text_has_no_room_otherwise(tiny_model: Path) -> None:
    accepted = with_memory(spec_of(tiny_model), host_of(MIB))
    assert tokens_of(accepted) == LONGEST
    assert accepted.stages[0].trainer.engine_args == {"gradient_checkpointing": True}
    assert len(accepted.warnings) == 2 and "gradient_checkpointing is true" in accepted.warnings[0]


def test_layers_that_are_computed_again_leave_room_for_a_larger_micro_batch(tiny_model: Path) -> None:
    recomputing = spec_of(tiny_model, tokens=128, gradient_checkpointing=True)
    explorer = with_memory(recomputing, host_of(1 << 36)).memory[1]
    beside_bytes = explorer.workers * sum(need.size_bytes for need in explorer.needs)
    host = host_of(int(peak_bytes(recomputing) / 0.9) + beside_bytes + MIB // 8)
    assert peak_bytes(spec_of(tiny_model, tokens=LONGEST)) > peak_bytes(recomputing)
    accepted = with_memory(spec_of(tiny_model), host)
    assert tokens_of(accepted) == 128
    assert accepted.stages[0].trainer.engine_args == {"gradient_checkpointing": True}


@pytest.mark.parametrize("how", ["written", "deterministic", "unseen"])
def test_nothing_is_chosen_over_what_is_written_or_must_not_depend_on_a_machine(tiny_model: Path, how: str) -> None:
    spec = spec_of(tiny_model, written=how == "written", deterministic=how == "deterministic")
    accepted = with_memory(spec, ANY_HOST if how == "unseen" else host_of(MIB))
    assert accepted.stages == spec.stages and accepted.warnings == ()
    assert bool(accepted.memory) == (how != "unseen")


def test_free_memory_counts_where_the_workers_are_on_this_machine(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_plan, "free_on", lambda device: MIB)
    assert tokens_of(with_memory(spec_of(tiny_model), host_of(1 << 36))) == LONGEST
    clustered = msgspec.structs.replace(host_of(1 << 36), clustered=True)
    assert tokens_of(with_memory(spec_of(tiny_model), clustered)) == 4096


def test_what_goes_on_keeps_the_micro_batch_that_was_chosen(tiny_model: Path) -> None:
    tight = with_memory(spec_of(tiny_model), host_of(MIB))
    roomy = with_memory(spec_of(tiny_model), host_of(1 << 36))
    goes_on = as_before(roomy, tight.stages, host_of(1 << 36))
    assert goes_on.stages == tight.stages, "layers are computed again, too"
    (need,) = [need.what for need in goes_on.memory[0].needs if "activations" in need.what]
    assert need == f"activations of {LONGEST} tokens"
    back = as_before(tight, roomy.stages)
    assert tokens_of(back) == tokens_of(roomy)
    assert not [warning for warning in back.warnings if "micro-batches have" in warning]
    written = spec_of(tiny_model, written=True)
    assert as_before(written, tight.stages).stages == written.stages
    assert as_before(roomy, written.stages) == roomy


def test_only_the_file_writes_a_micro_batch(tiny_model: Path) -> None:
    """A field that is left out is open until acceptance, and one that is written is not."""
    from rftd.daemon.config.loading import load_text

    text = f"""
project: p
name: n
model: {{model_path: {tiny_model}, max_prompt_tokens: 8, max_response_tokens: 8}}
algorithm: {{algorithm_type: grpo, repeat_times: 2}}
buffer:
  batch_size: 2
  total_steps: 1
  explorer_input: {{taskset: {{name: t, path: /rows.jsonl}}}}
"""
    written = {
        value: load_text(text, "x.yaml", overrides=overrides, environ={}, cwd=tiny_model).spec.stages[0].trainer
        for value, overrides in ((False, []), (True, ["trainer.max_token_len_per_gpu=512"]))
    }
    assert [trainer.micro_batch_written for trainer in written.values()] == [False, True]
