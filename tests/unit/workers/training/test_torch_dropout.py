"""Models whose configuration drops units out: trained without, and saved as the base describes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from synthetic.models.dropping_models import KINDS, dropping_model
from transformers import AutoConfig

from rftd.streams.spec.spec import StageSpec
from rftd.workers.learning.engine import TrainBatch
from rftd.workers.models.pretrained import without_dropout

Open = Callable[..., Any]
Make = Callable[..., Any]


def probabilities(folder: Path) -> dict[str, float]:
    """What transformers reads of the folder's dropout."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    return {name: value for name, value in vars(config).items() if "drop" in name}


@pytest.mark.parametrize("kind", KINDS)
def test_layers_that_are_computed_again_drop_nothing_out(
    tmp_path: Path, open_engine: Open, make_stage: Make, make_batch: Callable[..., TrainBatch], kind: str
) -> None:
    folder = dropping_model(tmp_path / "base", kind)
    assert any(probabilities(folder).values())
    checksums = []
    for again in (False, True):
        stage: StageSpec = make_stage()
        trainer = msgspec.structs.replace(stage.trainer, engine_args={"gradient_checkpointing": again})
        engine = open_engine(msgspec.structs.replace(stage, trainer=trainer), folder)
        engine.train(make_batch(1))
        checksums.append(engine.checksum())
        engine.save(tmp_path / f"again-{again}", hf=True)
        (saved,) = (tmp_path / f"again-{again}").rglob("huggingface")
        assert probabilities(saved) == probabilities(folder), "the saved folder is what its user started from"
    assert checksums[0] == checksums[1]


def test_parts_of_a_configuration_lose_theirs_too() -> None:
    config = AutoConfig.for_model("gemma3", text_config={"attention_dropout": 0.1}, vision_config={})
    config.vision_config.attention_dropout = 0.2
    without_dropout(config)
    assert (config.text_config.attention_dropout, config.vision_config.attention_dropout) == (0.0, 0.0)


def test_generation_settings_that_transformers_refuses_to_save_are_copied(
    tmp_path: Path, open_engine: Open, make_stage: Make
) -> None:
    """A temperature without `do_sample`, as folders of older chat models have it."""
    folder = dropping_model(tmp_path / "base", "gpt2")
    settings = '{"eos_token_id": 2, "temperature": 0.9, "top_p": 0.6}'
    (folder / "generation_config.json").write_text(settings)
    engine = open_engine(make_stage(), folder)
    for hf, name in ((True, "huggingface"), (False, "actor")):
        engine.save(tmp_path / name, hf=hf)
        (saved,) = (tmp_path / name).rglob("generation_config.json")
        assert saved.read_text() == settings
        assert json.loads((saved.parent / "config.json").read_text())["model_type"] == "gpt2"
