"""Checkpoints of several trainers become folders that transformers loads; broken and foreign ones are named."""

from __future__ import annotations

import os
import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy
import torch
from synthetic.models.foreign_checkpoints import megatron_state, small_model, write_distributed, write_fsdp

from rftd.ops.errors import DataError, NotFoundError
from rftd.workers.conversion.conversion import Conversion, convert, found_checkpoints
from rftd.workers.conversion.distributed import METADATA, distributed_tensors
from rftd.workers.conversion.fsdp import fsdp_tensors
from rftd.workers.conversion.torch_file import read_torch_file
from rftd.workers.conversion.whole_tensor import WholeTensor
from rftd.workers.engines.ranks.torch_shards import save_shards

PROMPT = torch.tensor([[1, 5, 9, 33]])


def converted(folder: Path, base: Path | None = None, steps: tuple[int, ...] = ()) -> list[Conversion]:
    return [convert(each, base, lambda *_: None) for each in found_checkpoints(folder, steps)]


def loads_as(model: Any, folder: Path) -> None:
    """Transformers finds every number of the model, at its place and of its dtype, and answers alike."""
    from transformers import AutoModelForCausalLM

    found, info = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    for name, value in model.state_dict().items():
        assert found.state_dict()[name].dtype == torch.float32
        assert torch.equal(found.state_dict()[name], value), name
    wanted, answer = (each.generate(PROMPT, max_new_tokens=8, do_sample=False) for each in (model, found))
    assert torch.equal(answer, wanted)


def only(outcomes: list[Conversion]) -> Conversion:
    assert len(outcomes) == 1
    return outcomes[0]


def bytes_of(tensors: list[WholeTensor]) -> dict[str, bytes]:
    return {each.name: b"".join(block.tobytes() for block in each.blocks()) for each in tensors}


@pytest.fixture(scope="module")
def model() -> Any:
    return small_model()


@pytest.fixture(scope="module")
def fsdp_run(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with one checkpoint of four ranks: no dimension is a multiple of four ranks' rows."""
    run = tmp_path_factory.mktemp("run")
    write_fsdp(run / "global_step_2" / "actor", model, ranks=4)
    return run


@pytest.fixture
def run(fsdp_run: Path, tmp_path: Path) -> Path:
    shutil.copytree(fsdp_run, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("tied", [False, True])
def test_files_of_fsdp_become_one_model_once(tied: bool, model: Any, run: Path, tmp_path: Path) -> None:
    if tied:
        model, run = small_model(tied=True), tmp_path / "tied"
        write_fsdp(run / "global_step_2" / "actor", model, ranks=2)
    done = only(converted(run))
    assert (done.form, done.error) == ("fsdp", None)
    loads_as(model, done.target)
    before = (done.target / "model.safetensors").stat()
    again = only(converted(run))
    assert (again.form, again.error, again.target) == (None, None, done.target)
    assert (done.target / "model.safetensors").stat() == before
    assert not [path.name for path in done.target.parent.iterdir() if path.name.startswith(".")]


def test_folders_of_megatron_become_one_model(model: Any, tmp_path: Path) -> None:
    model.config.save_pretrained(tmp_path / "base")
    for step, stacked in ((3, True), (4, False)):
        actor = tmp_path / "run" / f"global_step_{step}" / "actor"
        write_distributed(actor / "dist_ckpt", megatron_state(model, stacked=stacked))
    lacking = converted(tmp_path / "run")[0]
    assert lacking.error is not None
    assert lacking.error.field == "--base-model-dir"
    done = converted(tmp_path / "run", tmp_path / "base")
    assert [(each.form, each.error) for each in done] == [("megatron", None), ("megatron", None)]
    loads_as(model, done[0].target)
    first, second = (safetensors.numpy.load_file(each.target / "model.safetensors") for each in done)
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert value.tobytes() == second[name].tobytes(), name


def test_a_model_of_torch_distributed_checkpoint_keeps_its_names(model: Any, tmp_path: Path) -> None:
    actor = tmp_path / "global_step_3" / "actor"
    write_distributed(actor, {"model": model.state_dict()})
    model.config.save_pretrained(actor / "huggingface")
    assert only(converted(tmp_path)).form == "torch.distributed"
    loads_as(model, actor / "huggingface")


def test_our_own_take_the_configuration_of_another_checkpoint_of_the_run(model: Any, tmp_path: Path) -> None:
    for step in (2, 4):
        (tmp_path / f"global_step_{step}" / "actor").mkdir(parents=True)
        save_shards(tmp_path / f"global_step_{step}" / "actor", "model", dict(model.named_parameters()))
    model.config.save_pretrained(tmp_path / "global_step_4" / "actor" / "huggingface")
    outcomes = converted(tmp_path)
    assert [(each.checkpoint.step, each.form, each.error) for each in outcomes] == [
        (2, "rftd", None),
        (4, "rftd", None),
    ]
    loads_as(model, outcomes[0].target)


def test_a_folder_anywhere_around_a_checkpoint_is_enough(run: Path) -> None:
    step = run / "global_step_2"
    shutil.copytree(step, run / "stage" / "global_step_10")
    (run / ".global_step_2.tmp" / "actor").mkdir(parents=True)
    assert [each.step for each in found_checkpoints(run.parent)] == [2, 10]
    for place in (step, step / "actor", step / "actor" / "huggingface"):
        assert [each.folder for each in found_checkpoints(place)] == [step]
    assert [each.step for each in found_checkpoints(run, [10])] == [10]
    shutil.copytree(step / "actor", run / "kept")
    assert [each.actor for each in found_checkpoints(run / "kept")] == [run / "kept"]
    with pytest.raises(NotFoundError, match="there are 2, 10"):
        found_checkpoints(run, [3])
    with pytest.raises(NotFoundError, match="not a folder of checkpoints"):
        found_checkpoints(run / "nowhere")
    (run / "empty").mkdir()
    with pytest.raises(NotFoundError, match="no checkpoint"):
        found_checkpoints(run / "empty")


def test_what_a_killed_convert_left_is_not_taken_for_a_model(model: Any, run: Path) -> None:
    actor = run / "global_step_2" / "actor"
    (actor / ".huggingface.converting").mkdir()
    (actor / ".huggingface.converting" / "model.safetensors").write_bytes(b"half")
    (actor / "huggingface" / "model.safetensors").write_bytes((64).to_bytes(8, "little") + b"{}")
    (actor / "huggingface" / "notes.md").write_text("kept")
    done = only(converted(run))
    assert (done.form, done.error) == ("fsdp", None)
    loads_as(model, done.target)
    assert (done.target / "notes.md").read_text() == "kept"
    assert sorted(path.name for path in actor.iterdir() if path.suffix != ".pt") == ["fsdp_config.json", "huggingface"]


class Malice:
    """Removes a file when it is unpickled."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> Any:
        return os.unlink, (str(self.victim),)


def shard(actor: Path, rank: int = 1) -> Path:
    return actor / f"model_world_size_4_rank_{rank}.pt"


def _malicious(actor: Path) -> None:
    torch.save({"model.norm.weight": Malice(actor / "fsdp_config.json")}, shard(actor))


def _cut_off(actor: Path) -> None:
    os.truncate(shard(actor), shard(actor).stat().st_size // 2)


def _of_another_model(actor: Path) -> None:
    write_fsdp(actor.parent / "other", small_model(layers=2), ranks=4)
    shutil.copyfile(shard(actor.parent / "other"), shard(actor))
    shutil.rmtree(actor.parent / "other")


def _config_of_another(actor: Path) -> None:
    small_model(layers=4).config.save_pretrained(actor / "huggingface")


def _without_weights(actor: Path) -> None:
    for path in actor.glob("*.pt"):
        path.unlink()


def _not_a_number(actor: Path) -> None:
    wrong = small_model()
    with torch.no_grad():
        wrong.model.norm.weight[9] = torch.nan
    write_fsdp(actor, wrong, ranks=4)


BROKEN: list[tuple[Callable[[Path], object], str, str]] = [
    (_malicious, r"posix\.unlink'?, which is not part of a tensor", "rank_1.pt"),
    (_cut_off, "cut off", "rank_1.pt"),
    (lambda actor: shard(actor).unlink(), "the file of rank 1 of 4 is missing", "rank_1.pt"),
    (lambda actor: shard(actor, 3).unlink(), "the file of rank 3 of 4 is missing", "rank_3.pt"),
    (lambda actor: shard(actor).write_bytes(b"{}"), "not written by torch", "rank_1.pt"),
    (_of_another_model, "to another model than model_world_size_4_rank_0.pt", "rank_1.pt"),
    (_config_of_another, "layer 3 of 4 is missing", "rank_0.pt"),
    (_not_a_number, r"'model.norm.weight' holds NaN \(in .*rank_1.pt", "rank_0.pt"),
    (_without_weights, "no known weights", "actor"),
]


@pytest.mark.parametrize(("harm", "what", "where"), BROKEN, ids=lambda each: getattr(each, "__name__", ""))
def test_a_broken_checkpoint_is_named_and_left_as_it_is(
    harm: Callable[[Path], object], what: str, where: str, run: Path
) -> None:
    actor = run / "global_step_2" / "actor"
    harm(actor)
    before = sorted(path.relative_to(run) for path in run.rglob("*"))
    error = only(converted(run)).error
    assert isinstance(error, DataError)
    assert str(error.where).endswith(where)
    with pytest.raises(DataError, match=what):
        raise error
    assert sorted(path.relative_to(run) for path in run.rglob("*")) == before


def test_damage_anywhere_in_a_description_ends_in_an_error_of_ours(model: Any, tmp_path: Path) -> None:
    write_fsdp(tmp_path, model, ranks=1)
    path = tmp_path / "model_world_size_1_rank_0.pt"
    dcp = tmp_path / "dcp"
    write_distributed(dcp, megatron_state(model, stacked=True))
    metadata = (dcp / METADATA).read_bytes()
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    inner = next(name for name in entries if name.endswith("data.pkl"))
    chance = random.Random(4)
    refused = 0
    for _ in range(100):
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in (entries | {inner: struck(entries[inner], chance)}).items():
                archive.writestr(name, data)
        (dcp / METADATA).write_bytes(struck(metadata, chance))
        for read, folder in ((fsdp_tensors, tmp_path), (distributed_tensors, dcp)):
            try:
                bytes_of(read(folder))
            except DataError:
                refused += 1
    assert refused > 50


def struck(data: bytes, chance: random.Random) -> bytes:
    """The bytes with one of them changed."""
    at = chance.randrange(len(data))
    return data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]


def test_tensors_are_read_as_torch_would_however_they_lie(tmp_path: Path) -> None:
    whole = torch.arange(60.0).reshape(6, 10)
    state = {
        "rows": whole[2:5],
        "columns": whole[:, 3:7],
        "transposed": whole.T,
        "number": torch.tensor(3),
        "none": torch.zeros(0, 4),
        "nothing": torch.zeros(1, 0),
        "half": whole.to(torch.bfloat16),
        "eight": whole.to(torch.float8_e4m3fn),
        "parameter": torch.nn.Parameter(whole[1]),
    }
    torch.save(state, tmp_path / "model_world_size_1_rank_0.pt")
    found = bytes_of(fsdp_tensors(tmp_path))
    for name, value in state.items():
        assert found[name] == bytes(value.detach().contiguous().reshape(-1).view(torch.uint8).tolist()), name
    torch.save({"more": torch.zeros(1).expand(1000)}, tmp_path / "small.pt")
    with pytest.raises(DataError, match="beyond the end"):
        read_torch_file(tmp_path / "small.pt")
