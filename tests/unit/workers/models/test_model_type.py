"""Models that cannot run are refused by their type: at submission by config.json, else where they are opened."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from synthetic.models.tiny_models import MOVING, make_model
from transformers import (
    AutoModelForCausalLM,
    DiffLlamaConfig,
    Llama4TextConfig,
    RwkvConfig,
    T5Config,
    T5ForConditionalGeneration,
)

from rftd.daemon.run.supervisor.preflight import preflight
from rftd.ops.clock import SystemClock
from rftd.ops.errors import DataError
from rftd.streams.spec.spec import AlgorithmSpec, ExperimentSpec, ModelSpec, StageSpec
from rftd.workers.engines.torch.rollout.network import Network
from rftd.workers.engines.torch.rollout.trial import try_model
from rftd.workers.engines.torch.rollout.uncached import Way
from rftd.workers.engines.torch.trainer.engine import TorchTrainerEngine
from rftd.workers.generation.engine_registry import open_engine
from rftd.workers.models.model_type import check_model_type
from rftd.workers.models.tiny_model import make_tiny_model

SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
T5 = T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder that everything runs."""
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", seed=1, hidden_size=32, heads=2)


@pytest.fixture
def folder(tmp_path: Path, tiny: Path) -> Callable[..., Path]:
    """A copy of the tiny model's folder whose config.json has some keys changed, or is that text."""

    def make(changes: dict[str, Any] | str) -> Path:
        made = tmp_path / "model"
        shutil.copytree(tiny, made)
        path = made / "config.json"
        path.write_text(changes if isinstance(changes, str) else json.dumps(json.loads(path.read_text()) | changes))
        return made

    return make


@pytest.fixture
def saved(tmp_path: Path, tiny: Path) -> Callable[[Any], Path]:
    """A model as a folder, with the tiny model's tokenizer."""

    def save(model: Any) -> Path:
        made = tmp_path / "saved"
        model.save_pretrained(made)
        for file in tiny.iterdir():
            if "token" in file.name:
                shutil.copyfile(file, made / file.name)
        return made

    return save


def experiment(path: Path) -> ExperimentSpec:
    """An SFT stage of one step on the model in a folder."""
    stage = StageSpec(
        name="main",
        kind="train",
        total_steps=1,
        batch_size=1,
        train_batch_size=1,
        algorithm=AlgorithmSpec(kind="sft"),
        model=ModelSpec(path=str(path), max_model_len=48, max_prompt_tokens=24, max_response_tokens=24),
    )
    return ExperimentSpec(project="p", name="n", job_dir=str(path), config={}, stages=(stage,))


def opened(path: Path) -> None:
    """Opens the model with the trainer, and lets it go."""
    engine = TorchTrainerEngine()
    try:
        engine.open(experiment(path), str(path))
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("changes", "says", "fix"),
    [
        ({"model_type": "t5"}, "t5 models cannot be run: transformers has no causal language model", "causal language"),
        ({"model_type": "qwen33"}, "qwen33 models cannot be run", "did you mean 'qwen3'?"),
        ({"model_type": "mine", "auto_map": {}}, "mine models cannot be run", "trust_remote_code: true"),
        ({"model_type": "roberta"}, "roberta models cannot be run: they are encoders", "causal language model"),
        (
            {"model_type": "qwen3_5", "vision_config": {}},
            "qwen3_5 models cannot be run: they also take images or audio",
            "alone",
        ),
        ({"model_type": None}, "names no model_type", "copy the folder"),
        ('{"model_type": "qwen2"', "config.json cannot be read", "copy the folder"),
        ("[]", "config.json cannot be read", "copy the folder"),
    ],
)
def test_what_cannot_run_is_refused_at_submission(
    folder: Callable[..., Path], changes: dict[str, Any] | str, says: str, fix: str
) -> None:
    made = folder(changes)
    with pytest.raises(DataError) as refused:
        preflight(experiment(made))
    assert says in str(refused.value)
    assert fix in str(refused.value)
    assert refused.value.field == "model.model_path"
    with pytest.raises(DataError):
        opened(made)
    with pytest.raises(DataError):
        Network.load(str(made), max_len=48, dtype="float32")


def test_the_folder_of_a_checkpoint_is_answered_with_the_one_below_it(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "actor").mkdir()
    (tmp_path / "actor" / "huggingface").symlink_to(tiny)
    with pytest.raises(DataError, match="no model in") as refused:
        preflight(experiment(tmp_path / "actor"))
    assert refused.value.fix == f"give {str(tmp_path / 'actor' / 'huggingface')!r}, which has one"


def test_a_config_that_is_nested_without_an_end_is_refused_at_submission(folder: Callable[..., Path]) -> None:
    with pytest.raises(DataError, match=r"config\.json cannot be read"):
        preflight(experiment(folder('{"a": ' + "[" * 5000 + "]" * 5000 + "}")))


@pytest.mark.parametrize("turning", MOVING)
@pytest.mark.parametrize("old_spelling", [True, False])
def test_a_rotation_that_depends_on_length_is_refused_at_submission(
    tmp_path: Path, turning: str, old_spelling: bool
) -> None:
    """The refusal is that of opening: only where texts may be longer than its own limit."""
    for limit, refused in ((47, True), (48, False)):
        made = make_model(tmp_path / str(limit), MOVING[turning](limit), seed=4)
        path = made / "config.json"
        config = json.loads(path.read_text())
        if old_spelling:
            rotation = config.pop("rope_parameters")
            rotation["type"] = rotation.pop("rope_type")
            config["rope_scaling"] = rotation
            path.write_text(json.dumps(config))
        if not refused:
            preflight(experiment(made))
            continue
        with pytest.raises(DataError, match=f"'{turning}' turns all tokens .* longer than {limit} tokens") as raised:
            preflight(experiment(made))
        assert (raised.value.field, f"at most {limit}" in str(raised.value)) == ("model.max_model_len", True)


def test_a_teacher_and_a_critic_are_looked_at_too(folder: Callable[..., Path], tiny: Path) -> None:
    made = folder({"model_type": "t5"})
    for name, field in (("critic_path", "model.critic_model_path"), ("teacher_path", "explorer.auxiliary_models")):
        spec = experiment(tiny)
        trainer = msgspec.structs.replace(spec.stages[0].trainer, **{name: str(made)})
        stage = msgspec.structs.replace(spec.stages[0], trainer=trainer)
        with pytest.raises(DataError, match="t5 models") as refused:
            preflight(msgspec.structs.replace(spec, stages=(stage,)))
        assert refused.value.field == field


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model_type": "roberta", "is_decoder": True},
        {"model_type": "bart", "is_encoder_decoder": True},
        {"model_type": "mine", "auto_map": {"AutoModelForCausalLM": "mine.Mine"}},
    ],
)
def test_what_may_run_is_left_to_the_trial(folder: Callable[..., Path], changes: dict[str, Any]) -> None:
    check_model_type(folder(changes), trust_remote_code=True)


def test_it_needs_neither_torch_nor_transformers(tiny: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from rftd.workers.models.model_type import check_model_type;"
        "check_model_type(Path(sys.argv[1])); print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    said = subprocess.run([sys.executable, "-P", "-c", code, str(tiny)], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_a_folder_of_another_kind_of_model_is_named_by_both_engines(saved: Callable[[Any], Path]) -> None:
    made = saved(T5ForConditionalGeneration(T5))
    with pytest.raises(DataError, match="t5 models cannot be run"):
        opened(made)
    with pytest.raises(DataError, match="t5 models cannot be run"):
        Network.load(str(made), max_len=48, dtype="float32")


def test_attention_of_a_models_own_and_no_keys_at_all_are_computed_alone(saved: Callable[[Any], Path]) -> None:
    own = saved(AutoModelForCausalLM.from_config(DiffLlamaConfig(**SMALL)))
    assert try_model(Network.load(str(own), max_len=48, dtype="float32")) is Way.OWN_CACHE
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "context_length": 64}
    stateful = saved(AutoModelForCausalLM.from_config(RwkvConfig(**sizes, bos_token_id=1, eos_token_id=2)))
    network = Network.load(str(stateful), max_len=48, dtype="float32")
    assert try_model(network) is Way.RECOMPUTED


OWN_CODE = """
from transformers import Qwen2Config, Qwen2ForCausalLM
class MineConfig(Qwen2Config):
    model_type = "mine"
class MineForCausalLM(Qwen2ForCausalLM):
    config_class = MineConfig
"""


@pytest.mark.anyio
@pytest.mark.parametrize("trusted", [True, False])
async def test_a_models_own_code_runs_in_both_engines_if_it_is_trusted(
    folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusted: bool
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", sys.path.copy())  # transformers adds that folder
    names = {"AutoConfig": "mine.MineConfig", "AutoModelForCausalLM": "mine.MineForCausalLM"}
    made = folder({"model_type": "mine", "auto_map": names})
    (made / "mine.py").write_text(OWN_CODE)
    spec = experiment(made)
    stage = msgspec.structs.replace(
        spec.stages[0], model=msgspec.structs.replace(spec.stages[0].model, trust_remote_code=trusted)
    )
    spec = msgspec.structs.replace(spec, stages=(stage,))
    trainer = TorchTrainerEngine()
    if trusted:
        preflight(spec)
        trainer.open(spec, str(made))
        await (await open_engine(spec, stage, slots=1, clock=SystemClock())).close()
    else:
        with pytest.raises(DataError, match="mine models cannot be run"):
            preflight(spec)
        with pytest.raises(DataError, match="mine models cannot be run"):
            trainer.open(spec, str(made))
        with pytest.raises(DataError, match="mine models cannot be run"):
            await open_engine(spec, stage, slots=1, clock=SystemClock())
    trainer.close()


def test_hidden_states_are_found_where_transformers_guesses_wrong(saved: Callable[[Any], Path]) -> None:
    sizes = SMALL | {"head_dim": 8, "num_local_experts": 2, "interleave_moe_layer_step": 2, "intermediate_size_mlp": 64}
    opened(saved(AutoModelForCausalLM.from_config(Llama4TextConfig(**sizes))))
