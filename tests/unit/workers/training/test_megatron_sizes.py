"""Which models and sizes the strategy megatron trains: refused at submission, with the field and the numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rftd.ops.errors import ConfigError
from rftd.streams.spec.spec import StageSpec, TrainerSpec
from rftd.workers.learning.engine_registry import check_models, lookup
from rftd.workers.learning.memory_needs import training_needs

MakeStage = Callable[..., StageSpec]
CONFIG = {
    "model_type": "qwen2",
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 130,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}


@pytest.fixture
def cut(tmp_path: Path, make_stage: MakeStage) -> Callable[..., StageSpec]:
    """A stage whose model has this config.json, with tensors cut over so many ranks."""

    def made(config: dict[str, Any], parts: int = 1, **arguments: Any) -> StageSpec:
        (tmp_path / "config.json").write_text(json.dumps(config))
        stage = make_stage()
        arguments = {"strategy": "megatron", "tensor_model_parallel_size": parts, **arguments}
        trainer = TrainerSpec(engine="verl", engine_args=arguments)
        model = msgspec.structs.replace(stage.model, path=str(tmp_path))
        return msgspec.structs.replace(stage, trainer=trainer, model=model)

    return made


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"model_type": "mixtral"}, "its type is 'mixtral', and llama, qwen2, qwen3 are known"),
        ({"rope_parameters": {"rope_type": "llama3"}}, r"its positions are scaled \(llama3\)"),
        ({"rope_parameters": None, "rope_scaling": {"type": "yarn"}}, r"its positions are scaled \(yarn\)"),
        ({"use_sliding_window": True}, "within a sliding window"),
        ({"attention_bias": True}, "its config.json says attention_bias"),
        ({"hidden_act": "gelu"}, "its activation is gelu"),
    ],
)
def test_a_decoder_that_is_not_known_is_refused(
    cut: Callable[..., StageSpec], changed: dict[str, Any], words: str
) -> None:
    check_models(cut(CONFIG))
    with pytest.raises(ConfigError, match=words) as caught:
        check_models(cut({**CONFIG, **changed}))
    assert caught.value.field == "model.model_path"
    check_models(cut({**CONFIG, **changed}, strategy="fsdp2", parts=1))


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (3, "does not divide the model's 8 attention heads"),
        (8, r"does not divide the model's 4 groups of heads \(num_key_value_heads\)"),
        (4, "does not divide the model's 130 tokens of its vocabulary"),
    ],
)
def test_parts_that_a_model_does_not_have_are_refused(cut: Callable[..., StageSpec], parts: int, words: str) -> None:
    check_models(cut(CONFIG, 2))
    with pytest.raises(ConfigError, match=words) as caught:
        check_models(cut(CONFIG, parts))
    assert caught.value.field == "trainer.engine_args.tensor_model_parallel_size"


def test_memory_is_that_of_a_part_and_of_megatrons_own_parameters(
    cut: Callable[..., StageSpec], tiny_model: Path
) -> None:
    needs = lookup("verl").needs
    assert needs is not None
    stage = cut(CONFIG, 2)
    alike = training_needs(stage, tiny_model, spread=2)
    *ours, own = needs(stage, tiny_model, 4)
    assert ours == alike
    assert (own.what, own.size_bytes) == ("Megatron's parameters", alike[0].size_bytes)
    half = msgspec.structs.replace(stage, trainer=msgspec.structs.replace(stage.trainer, dtype="bfloat16"))
    assert needs(half, tiny_model, 4)[-1].size_bytes == alike[0].size_bytes // 2
