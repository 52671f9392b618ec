"""What a model folder says of dropout and of generating, under verl: nothing is dropped out, and all of it is saved."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from synthetic.models.dropping_models import dropping_model
from synthetic.models.engine_parity import ParityBench, all_cases, distance, make_models
from synthetic.models.odd_folders import change

DPO = next(case for case in all_cases([32]) if case.algorithm == "dpo")
SETTINGS = '{"eos_token_id": [2, 5], "temperature": 0.9, "top_p": 0.6}'
"""A temperature without `do_sample`, which transformers refuses to save; and two ends."""
RATE = 0.5


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> ParityBench:
    """The torch engine over a model without dropout."""
    folder = tmp_path_factory.mktemp("plain")
    return ParityBench("torch", make_models(folder), folder / "torch")


@pytest.mark.parametrize(
    "arguments",
    [
        {"gradient_checkpointing": False},
        {"gradient_checkpointing": True},
        {"gradient_checkpointing": True, "ranks": 2, "device": "cpu"},
        # On a CPU Megatron computes no layer again, and says so.
        {"strategy": "megatron", "device": "cpu"},
    ],
    ids=["kept", "again", "again on two", "megatron"],
)
def test_dropout_is_off_while_verl_trains_and_saved_as_the_base_has_it(
    plain: ParityBench, tmp_path: Path, arguments: Mapping[str, Any]
) -> None:
    folder = Path(shutil.copytree(plain.model, tmp_path / "model"))
    change(folder, "config.json", attention_dropout=RATE)
    (folder / "generation_config.json").write_text(SETTINGS)
    bench = ParityBench("verl", folder, tmp_path / "verl", arguments)
    try:
        apart = distance(plain.run(DPO), bench.run(DPO))
        bench.engine.save(tmp_path / "saved", hf=True)
        bench.engine.save(tmp_path / "bare", hf=False)
    finally:
        bench.engine.close()
    assert apart.loss <= 1e-5
    assert apart.norm <= 1e-4
    assert apart.weights <= 1e-4
    for saved in (tmp_path / "saved", tmp_path / "bare"):
        configs = sorted(saved.rglob("config.json"))
        assert configs
        for config in configs:
            assert json.loads(config.read_text())["attention_dropout"] == RATE, config
            assert (config.parent / "generation_config.json").read_text() == SETTINGS, config


@pytest.mark.parametrize("kind", ["starcoder2", "opt"])
def test_layers_that_verl_computes_again_drop_nothing_out(tmp_path: Path, kind: str) -> None:
    """They are in training mode then, and pass that on to what drops out."""
    folder = dropping_model(tmp_path / "model", kind)
    plain = ParityBench("torch", folder, tmp_path / "torch")
    verl = ParityBench("verl", folder, tmp_path / "verl", {"gradient_checkpointing": True})
    apart = distance(plain.run(DPO), verl.run(DPO))
    assert apart.loss <= 1e-5
    assert apart.norm <= 1e-4
    assert apart.weights <= 1e-4
