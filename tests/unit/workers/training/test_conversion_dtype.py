"""Converted models have the type of the model, or the one that is named, and nothing that is there is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from synthetic.models.foreign_checkpoints import small_model

from rftd.ops.errors import DataError
from rftd.workers.conversion.conversion import Conversion, convert, found_checkpoints
from rftd.workers.conversion.whole_tensor import DTYPES, cast

TORCH = {name: getattr(torch, name) for name in (*DTYPES, "float64")}


@pytest.fixture(scope="module")
def model() -> Any:
    return small_model()


@pytest.fixture
def run(model: Any, tmp_path: Path) -> Path:
    """A run with one checkpoint of ours in float32, which transformers loads as it is."""
    model.save_pretrained(tmp_path / "run" / "global_step_2" / "actor")
    return tmp_path / "run"


def base_of(model: Any, folder: Path, dtype: str) -> Path:
    """A model folder whose configuration names the type."""
    model.config.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"dtype": dtype}))
    return folder


def converted(folder: Path, base: Path | None = None, dtype: str | None = None) -> Conversion:
    [checkpoint] = found_checkpoints(folder)
    outcome = convert(checkpoint, base, lambda *_: None, dtype=dtype)
    assert outcome.error is None, outcome.error
    return outcome


def check_numbers(model: Any, folder: Path, dtype: str) -> None:
    """The folder has every number of the model, as torch rounds it to the type, and says so."""
    saved = safetensors.torch.load_file(folder / "model.safetensors")
    for name, value in model.state_dict().items():
        assert torch.equal(saved[name], value.to(TORCH[dtype])), name
    assert json.loads((folder / "config.json").read_text())["dtype"] == dtype


@pytest.mark.parametrize("stored", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_are_rounded_as_torch_rounds_them(stored: str, dtype: str) -> None:
    words = np.random.default_rng(7).integers(0, 2**32, 100_000, dtype=np.uint32)
    edges = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F800000, 0xFF800000, 0x00000001, 0x80000000], np.uint32)
    numbers = torch.from_numpy(np.concatenate([words, edges]).view(np.float32).copy()).to(TORCH[stored])
    numbers = numbers[~torch.isnan(numbers)]
    if dtype == "float16":
        numbers = numbers[torch.isfinite(numbers.half()) | torch.isinf(numbers)]
    item_bytes = numbers.element_size()
    block = numbers.view(torch.uint8).numpy().view(f"u{item_bytes}")
    if dtype == "bfloat16" and stored == "float64":
        numbers = numbers.float()  # through float32, as float64 is to the processor
    wanted = numbers.to(TORCH[dtype])
    assert cast(block, stored, dtype).tobytes() == wanted.view(torch.uint8).numpy().tobytes()


def test_whole_numbers_stay_as_they_are() -> None:
    block = np.array([1, 2], np.uint64)
    assert cast(block, "int64", "bfloat16") is block


def test_a_number_that_float16_cannot_hold_is_refused() -> None:
    with pytest.raises(DataError, match="it holds 70000, and float16 ends at 65504"):
        cast(np.array([70000.0, np.inf], np.float32).view(np.uint32), "float32", "float16")


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_type_that_is_named_is_written(model: Any, run: Path, dtype: str) -> None:
    outcome = converted(run, dtype=dtype)
    assert outcome.target.name == "huggingface"
    check_numbers(model, outcome.target, dtype)
    weights = (outcome.target / "model.safetensors").stat()
    assert (
        weights.st_size
        > outcome.size_bytes
        == sum(value.numel() * TORCH[dtype].itemsize for value in model.state_dict().values())
    )


def test_the_type_of_the_base_model_is_the_default(model: Any, run: Path, tmp_path: Path) -> None:
    outcome = converted(run, base_of(model, tmp_path / "base", "bfloat16"))
    check_numbers(model, outcome.target, "bfloat16")


def test_without_anything_that_tells_the_model_s_type_numbers_stay(model: Any, run: Path) -> None:
    check_numbers(model, converted(run).target, "float32")


def test_another_folder_of_the_run_tells_the_model_s_type(model: Any, run: Path) -> None:
    last = run / "global_step_4" / "actor" / "huggingface"
    base_of(model, last, "bfloat16")
    safetensors.torch.save_file({"x": torch.zeros(1)}, last / "model.safetensors")
    outcome = converted(run / "global_step_2")
    check_numbers(model, outcome.target, "bfloat16")


def test_a_folder_that_is_there_stays_and_another_type_goes_beside_it(model: Any, run: Path) -> None:
    first = converted(run, dtype="float32")
    other = converted(run, dtype="bfloat16")
    assert (first.target.name, other.target.name) == ("huggingface", "huggingface-bfloat16")
    check_numbers(model, first.target, "float32")
    check_numbers(model, other.target, "bfloat16")
    assert converted(run, dtype="bfloat16").form is None, "it exists already"
    assert converted(run).target == first.target


def test_weights_that_lie_in_the_folder_alone_are_converted_beside_it(model: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "global_step_2" / "actor" / "huggingface"
    model.save_pretrained(folder)
    outcome = converted(tmp_path / "run", dtype="bfloat16")
    assert outcome.target == folder.with_name("huggingface-bfloat16")
    check_numbers(model, outcome.target, "bfloat16")
    check_numbers(model, folder, "float32")
