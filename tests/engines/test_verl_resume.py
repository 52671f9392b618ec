"""verl stopped after a step and taken up by one rank or two: weights and moments are those of the run itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from synthetic.models.engine_parity import make_models
from synthetic.models.resumed_ranks import ResumeBench
from synthetic.models.weight_receivers import assert_exported_as_held, assert_received_by_each_channel

from rftd.ops.errors import DataError
from rftd.workers.engines.ranks.controller import RankedEngine
from rftd.workers.engines.ranks.torch_shards import shards_of
from rftd.workers.weights.shards import write_manifest, write_part

STEPS = 2
"""`tests/bench/rank_resume.py` stops at each of ten."""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ResumeBench]:
    """One start of the ranks for all of the tests."""
    folder = tmp_path_factory.mktemp("resumed")
    made = ResumeBench("verl", make_models(folder), folder)
    yield made
    made.close()


def test_any_number_of_ranks_goes_on_after_any_step(bench: ResumeBench) -> None:
    found = list(bench.apart(STEPS))
    assert len(found) == 4 * STEPS
    for each in found:
        most = 0.0 if each.before == each.after else 1e-6
        assert each.weights <= most, each
        assert each.moments <= most, each


def test_each_channel_brings_explorers_what_two_ranks_hold(bench: ResumeBench, tmp_path: Path) -> None:
    bench.saved_after_a_step(2)
    engine = bench.engines[2]
    assert isinstance(engine, RankedEngine)
    assert_received_by_each_channel(engine, tmp_path)


def test_the_folder_for_transformers_has_what_two_ranks_hold(bench: ResumeBench, tmp_path: Path) -> None:
    """Bit for bit, though no rank has more than pieces of the other one's parts."""
    bench.saved_after_a_step(2)
    engine = bench.engines[2]
    assert isinstance(engine, RankedEngine)
    assert_exported_as_held(engine, tmp_path)


@dataclass(frozen=True)
class Damage:
    """Something that happens to a file below a checkpoint's folder, and what is said of it then."""

    file: str
    does: Callable[[Path], object]
    says: str


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def take_for_another_model(path: Path) -> None:
    tensors = {"model.embed_tokens.weight": torch.zeros(6, 4)}
    parts = [write_part(path.parent, "model", shards_of(tensors, rank, 2), rank=rank, ranks=2) for rank in (0, 1)]
    write_manifest(path.parent, "model", parts)


def swap_ranks(path: Path) -> None:
    """The files of both ranks, each under the other's name."""
    other = path.with_name(path.name.replace("rank_1", "rank_0"))
    data = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(data)


SECOND = "rank_1_of_2.safetensors"
DAMAGES = [
    Damage(f"actor/model.{SECOND}", Path.unlink, "the model of rank 1 is missing"),
    Damage(f"actor/model.{SECOND}", cut_off, r"the model of rank 1 has \d+ bytes instead of \d+"),
    Damage(f"actor/model.{SECOND}", flip, "the model of rank 1 has other bytes than were written"),
    Damage(f"actor/optimizer.{SECOND}", Path.unlink, "the optimizer of rank 1 is missing"),
    Damage(f"critic/optimizer.{SECOND}", cut_off, r"the optimizer of rank 1 has \d+ bytes instead of \d+"),
    Damage(f"actor/reference.{SECOND}", flip, "the reference of rank 1 has other bytes than were written"),
    Damage(f"critic/model.{SECOND}", swap_ranks, "the model of rank 0 has"),
    Damage("actor/model.shards.json", take_for_another_model, "the model is of another model: '"),
    Damage("actor/model.shards.json", Path.unlink, r"the checkpoint has no weights"),
    Damage("critic/model.shards.json", Path.unlink, r"critic"),
    Damage("actor/optimizer.shards.json", Path.unlink, r"optimizer"),
    Damage("actor/optimizer.shards.json", cut_off, "no manifest of a checkpoint in parts"),
    Damage("actor/trainer_state.json", Path.unlink, "trainer_state.json"),
]


def test_a_checkpoint_that_is_not_whole_is_refused_by_all_ranks_which_go_on(bench: ResumeBench, tmp_path: Path) -> None:
    """Whether two ranks take it up or one; the next checkpoint is taken as if nothing had happened."""
    whole = bench.saved_after_a_step(2)
    checksum = bench.engines[2].checksum()
    for number, damage in enumerate(DAMAGES):
        folder = tmp_path / f"{number}"
        shutil.copytree(whole, folder)
        damage.does(folder / damage.file)
        for ranks, engine in bench.engines.items():
            with pytest.raises(DataError, match=damage.says):
                engine.load(folder, bench.stage(ranks))
    for ranks, engine in bench.engines.items():
        engine.load(whole, bench.stage(ranks))
        assert engine.checksum() == checksum
