"""Models read by several threads at once, and model folders that lack weights."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from transformers.utils.logging import enable_progress_bar

from rftd.ops.errors import DataError
from rftd.workers.models.pretrained import read_model
from rftd.workers.models.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", seed=3, hidden_size=32, heads=2)


def test_threads_that_read_at_once_leave_each_other_alone(folder: Path) -> None:
    def tied(_: int) -> bool:
        model = read_model(folder)
        return model.get_output_embeddings().weight is model.get_input_embeddings().weight

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(tied, range(32)))


def test_reading_draws_no_progress_bar(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Standard error is the worker's log."""
    enable_progress_bar()  # type: ignore[no-untyped-call]
    read_model(folder)
    assert capfd.readouterr().err == ""


def test_a_folder_without_one_of_the_weights_is_refused(folder: Path, tmp_path: Path) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    lost = sorted(tensors)[3]
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "config.json").write_bytes((folder / "config.json").read_bytes())
    save_file({name: tensors[name] for name in tensors if name != lost}, damaged / file.name, {"format": "pt"})
    with pytest.raises(DataError, match=lost):
        read_model(damaged)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_that_is_no_number_is_named(folder: Path, tmp_path: Path, value: float) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.self_attn.q_proj.weight"][0, 3] = value
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match=r"layers\.1\.self_attn\.q_proj\.weight' of the model has 1 of .* NaN or inf"):
        read_model(tmp_path)
