"""The `checkpoint` channel: what is written comes back, and damage is seen."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rftd.ops.errors import ConflictError, WorkError
from rftd.workers.models.tiny_model import make_tiny_model
from rftd.workers.weights import checkpoint
from rftd.workers.weights.checksum import checksum
from rftd.workers.weights.manifest import manifest_id
from rftd.workers.weights.torch_bytes import bytes_of, tensors_of


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), seed=1)


def test_tied_weights_round_trip_and_are_stored_once(tmp_path: Path, model_folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    tensors = model.state_dict()
    assert tensors["lm_head.weight"].data_ptr() == tensors["model.embed_tokens.weight"].data_ptr()
    exported = checkpoint.export(bytes_of(tensors), tmp_path / "v3", version=3, generation=1)
    manifest, stored = checkpoint.read(Path(exported.path))
    loaded = tensors_of(stored)
    assert (manifest.version, manifest.generation) == (3, 1)
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)
    assert loaded["lm_head.weight"] is loaded["model.embed_tokens.weight"]
    assert exported.checksum == manifest.checksum == checksum(bytes_of(tensors)) == checksum(stored)
    assert exported.manifest == manifest_id((tmp_path / "v3" / "manifest.json").read_bytes())
    parameters = sum(p.numel() for p in model.parameters())
    assert 4 * parameters < exported.size_bytes < 4 * parameters + 10_000
    assert [path.name for path in tmp_path.iterdir()] == ["v3"]


def test_views_of_one_storage_and_other_dtypes(tmp_path: Path) -> None:
    base = torch.arange(24, dtype=torch.bfloat16).reshape(4, 6)
    tensors = {"top": base[:2], "rest": base[2:], "column": base[:, 1], "count": torch.tensor(7)}
    checkpoint.export(bytes_of(tensors), tmp_path / "v", version=0, generation=0)
    loaded = tensors_of(checkpoint.read(tmp_path / "v")[1])
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)
    assert all(loaded[name].dtype == tensors[name].dtype for name in tensors)


def test_repeating_is_idempotent_and_other_weights_are_refused(tmp_path: Path) -> None:
    tensors = {"w": torch.ones(3)}
    first = checkpoint.export(bytes_of(tensors), tmp_path / "v", version=1, generation=0)
    (tmp_path / ".v.partial").mkdir()  # what a killed writer leaves
    assert checkpoint.export(bytes_of(tensors), tmp_path / "v", version=1, generation=0) == first
    with pytest.raises(ConflictError, match="already holds other weights"):
        checkpoint.export(bytes_of({"w": torch.zeros(3)}), tmp_path / "v", version=1, generation=0)
    assert torch.equal(tensors_of(checkpoint.read(tmp_path / "v")[1])["w"], tensors["w"])


def test_a_killed_writer_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    partial = tmp_path / ".v.partial"
    partial.mkdir()
    (partial / "model.safetensors").write_bytes(b"half")
    checkpoint.export(bytes_of({"w": torch.ones(3)}), tmp_path / "v", version=1, generation=0)
    assert checkpoint.read(tmp_path / "v")[0].version == 1
    assert not partial.exists()


@pytest.mark.parametrize("theirs", [1.0, 0.0])
def test_another_writer_of_the_same_version_may_be_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, theirs: float
) -> None:
    """Stopped after it found nothing there; a trainer that it had replaced wakes and writes the same version."""

    def woken(folder: Path) -> None:
        monkeypatch.undo()
        checkpoint.export(bytes_of({"w": torch.full((3,), theirs)}), tmp_path / "v", version=0, generation=0)

    monkeypatch.setattr(checkpoint, "make_durable_folder", woken)
    ours = {"w": torch.ones(3)}
    if theirs == 1.0:
        exported = checkpoint.export(bytes_of(ours), tmp_path / "v", version=0, generation=0)
        assert exported.checksum == checksum(bytes_of(ours))
        assert [path.name for path in tmp_path.iterdir()] == ["v"]
    else:
        with pytest.raises(ConflictError, match="already holds other weights"):
            checkpoint.export(bytes_of(ours), tmp_path / "v", version=0, generation=0)
    assert torch.equal(tensors_of(checkpoint.read(tmp_path / "v")[1])["w"], torch.full((3,), theirs))


def test_damage_is_seen(tmp_path: Path) -> None:
    folder = tmp_path / "v"
    checkpoint.export(bytes_of({"w": torch.ones(300)}), folder, version=1, generation=0)
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(WorkError, match="'w' is damaged"):
        checkpoint.read(folder)
    file.write_bytes(data[:-5])
    with pytest.raises(WorkError, match="cannot be read"):
        checkpoint.read(folder)
    (folder / "manifest.json").write_text("{}")
    with pytest.raises(WorkError, match="no manifest"):
        checkpoint.read(folder)
    with pytest.raises(WorkError, match="no manifest"):
        checkpoint.read(tmp_path / "absent")
