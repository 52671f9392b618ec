"""The tensors of a model folder, as vLLM's workers check weights against them and add adapters to them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from synthetic.models.tiny_models import make_model
from transformers import AutoModelForCausalLM

from rftd.ops.errors import RolloutError
from rftd.workers.engines.vllm.shapes import Expected, base_weights, check_finite


def test_an_adapter_is_added_to_what_the_folder_holds_in_however_many_files(tmp_path: Path) -> None:
    whole = make_model(tmp_path / "whole", "qwen2", seed=1)
    model = AutoModelForCausalLM.from_pretrained(whole)
    model.save_pretrained(tmp_path / "parts", max_shard_size="50KB")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 1
    (tmp_path / "parts" / "consolidated.safetensors").write_bytes(b"of another layout, and none of the index")
    wanted = load_file(whole / "model.safetensors")
    for folder in (whole, tmp_path / "parts"):
        found = base_weights(folder)
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)
        Expected.of(folder).check(found)


def test_names_and_shapes_are_checked_without_reading_numbers(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", "qwen2", seed=1)
    found = base_weights(folder)
    name = "model.layers.0.mlp.up_proj.weight"
    found[name] = torch.full_like(found[name], float("nan"))
    Expected.of(folder).check(found)
    with pytest.raises(RolloutError, match=f"NaN or infinity in '{name}' and 0 more"):
        check_finite(found)
