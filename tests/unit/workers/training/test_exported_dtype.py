"""The folder for transformers has the dtype of the model; a trainer resumes from float32."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import safetensors.torch
import torch
from transformers import AutoModelForCausalLM

from rftd.streams.spec.spec import LoraSpec
from rftd.workers.models.tiny_model import make_tokenizer

Make = Callable[..., Any]


def base_in(dtype: torch.dtype, tiny_model: Path, folder: Path, kept: str = "") -> Path:
    """The tiny model in another dtype, but for a tensor that stays float32."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=dtype)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    if kept:
        tensors[kept] = tensors[kept].float()
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def saved(folder: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder / "model.safetensors")


def test_a_model_in_bfloat16_is_exported_in_it_and_resumed_in_float32(
    tiny_model: Path, open_engine: Make, make_stage: Make, make_batch: Make, tmp_path: Path
) -> None:
    kept = "model.norm.weight"
    base = base_in(torch.bfloat16, tiny_model, tmp_path / "base", kept)
    stage = make_stage()
    engine = open_engine(stage, base)
    engine.train(make_batch(1))
    engine.save(tmp_path / "step", hf=True)
    exported = saved(tmp_path / "step" / "actor" / "huggingface")
    own = saved(tmp_path / "step" / "actor")
    assert exported.keys() == own.keys()
    for name, value in own.items():
        assert value.dtype == torch.float32
        assert torch.equal(exported[name], value if name == kept else value.to(torch.bfloat16)), name
    config = json.loads((tmp_path / "step" / "actor" / "huggingface" / "config.json").read_text())
    assert config["dtype"] == "bfloat16"
    resumed = open_engine(stage, base)
    resumed.load(tmp_path / "step", stage)
    assert resumed.checksum() == engine.checksum()
    for trainer in (engine, resumed):
        trainer.train(make_batch(2))
    assert resumed.checksum() == engine.checksum()


def test_a_model_in_float32_is_saved_once(
    tiny_model: Path, open_engine: Make, make_stage: Make, tmp_path: Path
) -> None:
    engine = open_engine(make_stage())
    engine.save(tmp_path, hf=True)
    assert not (tmp_path / "actor" / "model.safetensors").exists()
    assert {value.dtype for value in saved(tmp_path / "actor" / "huggingface").values()} == {torch.float32}


def test_a_merged_adapter_is_exported_in_the_dtype_of_the_model(
    tiny_model: Path, open_engine: Make, make_stage: Make, make_batch: Make, tmp_path: Path
) -> None:
    stage = make_stage()
    lora = LoraSpec(rank=4, target_modules=("q_proj", "o_proj"))
    stage = msgspec.structs.replace(stage, model=msgspec.structs.replace(stage.model, lora=lora))
    engine = open_engine(stage, base_in(torch.bfloat16, tiny_model, tmp_path / "base"))
    engine.train(make_batch(1))
    engine.save(tmp_path / "step", hf=True)
    exported = saved(tmp_path / "step" / "actor" / "huggingface")
    assert {value.dtype for value in exported.values()} == {torch.bfloat16}
    whole = engine.tensors()
    assert all(torch.equal(value, whole[name].to(torch.bfloat16)) for name, value in exported.items())


def test_numbers_that_the_dtype_cannot_hold_keep_the_folder_in_float32(
    tiny_model: Path, open_engine: Make, make_stage: Make, tmp_path: Path
) -> None:
    engine = open_engine(make_stage(), base_in(torch.float16, tiny_model, tmp_path / "base"))
    name = "model.norm.weight"
    with torch.no_grad():
        engine.tensors()[name].fill_(1e5)
    engine.save(tmp_path / "step", hf=True)
    exported = saved(tmp_path / "step" / "actor" / "huggingface")
    assert exported[name].dtype == torch.float32
    assert torch.all(exported[name] == 1e5)


@pytest.mark.parametrize("hf", [False, True])
def test_transformers_loads_what_was_saved(
    tiny_model: Path, open_engine: Make, make_stage: Make, tmp_path: Path, hf: bool
) -> None:
    engine = open_engine(make_stage(), base_in(torch.bfloat16, tiny_model, tmp_path / "base"))
    engine.save(tmp_path / "step", hf=hf)
    folder = tmp_path / "step" / "actor" / ("huggingface" if hf else "")
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)  # type: ignore[no-untyped-call]
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert model.dtype == (torch.bfloat16 if hf else torch.float32)
