"""Tensors that any number of ranks wrote in parts are read in any other parts, number by number."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rftd.ops.errors import DataError, WorkError
from rftd.workers.engines.ranks import spread
from rftd.workers.engines.ranks.messages import RankPart
from rftd.workers.engines.ranks.spool import spread_parts, write_part_of, write_shards, write_spread
from rftd.workers.engines.ranks.torch_shards import load_whole, shards_of
from rftd.workers.weights.shards import Shard, ShardedTensors, ShardManifest, write_manifest, write_part
from rftd.workers.weights.tensor_bytes import TensorLayout
from rftd.workers.weights.torch_bytes import dtype_name, memory

DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.uint8, torch.int64, torch.bool, torch.float8_e4m3fn]
SHAPES = st.lists(st.integers(0, 7), min_size=0, max_size=3).map(tuple)


def made(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    size = math.prod(shape) * dtype.itemsize
    data = rng.integers(0, 2 if dtype == torch.bool else 256, max(size, 1), np.uint8)
    return torch.from_numpy(data[:size]).view(dtype).reshape(shape)


def boxes(draw: st.DrawFn, shape: tuple[int, ...], count: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The tensor, cut into `count` boxes: the largest is halved, along any dimension, until there are enough."""
    found = [((0,) * len(shape), shape)]
    while len(found) < count:
        found.sort(key=lambda box: math.prod(box[1]))
        offset, size = found.pop()
        dim = draw(st.integers(0, len(shape) - 1))
        cut = draw(st.integers(0, size[dim]))
        found.append((offset, (*size[:dim], cut, *size[dim + 1 :])))
        moved = (*offset[:dim], offset[dim] + cut, *offset[dim + 1 :])
        found.append((moved, (*size[:dim], size[dim] - cut, *size[dim + 1 :])))
    return draw(st.permutations(found))


def cut_out(tensor: torch.Tensor, offset: tuple[int, ...], size: tuple[int, ...]) -> torch.Tensor:
    return tensor[tuple(slice(begin, begin + extent) for begin, extent in zip(offset, size, strict=True))]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_parts_are_read_in_any_others(data: st.DataObject) -> None:
    ranks = data.draw(st.integers(1, 4))
    tensors = {
        f"layer.{number}": made(data.draw(SHAPES), data.draw(st.sampled_from(DTYPES)), number)
        for number in range(data.draw(st.integers(0, 4)))
    }
    held: list[list[Shard]] = [[] for _ in range(ranks)]
    for number, (name, tensor) in enumerate(tensors.items()):
        shape = tuple(tensor.shape)
        whole = TensorLayout(dtype_name(tensor), shape)
        cuts = data.draw(st.composite(boxes)(shape, ranks)) if shape else [((), ())]
        for rank, (offset, size) in enumerate(cuts):
            part = partial(memory, cut_out(tensor, offset, size))
            held[(rank + number) % ranks].append(Shard(name, whole, offset, size, part))
    with TemporaryDirectory() as place:
        folder = Path(place)
        parts = [write_part(folder, "model", shards, rank=rank, ranks=ranks) for rank, shards in enumerate(held)]
        write_manifest(folder, "model", parts)
        saved = ShardedTensors.open(folder, "model")
        saved.verify()
        assert saved.layouts() == {
            name: TensorLayout(dtype_name(each), tuple(each.shape)) for name, each in tensors.items()
        }
        for name, tensor in tensors.items():
            assert bytes(saved.whole(name).data) == bytes(memory(tensor))
            shape = tuple(tensor.shape)
            if shape:
                for offset, size in data.draw(st.composite(boxes)(shape, 3)):
                    assert bytes(saved.read(name, offset, size).data) == bytes(memory(cut_out(tensor, offset, size)))


class Parts:
    """Implements `SpreadWeights` with some of the parts."""

    exact = True

    def __init__(self, layouts: Mapping[str, TensorLayout], held: Sequence[Shard]) -> None:
        self._layouts = layouts
        self._held = held

    def layouts(self) -> Mapping[str, TensorLayout]:
        return self._layouts

    def shards(self) -> Iterator[Shard]:
        return iter(self._held)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_parts_that_another_node_sends_fill_the_same_file(data: st.DataObject) -> None:
    tensors = {
        f"layer.{number}": made(data.draw(SHAPES), data.draw(st.sampled_from(DTYPES)), number)
        for number in range(data.draw(st.integers(1, 4)))
    }
    layouts = {name: TensorLayout(dtype_name(each), tuple(each.shape)) for name, each in tensors.items()}
    held: list[list[Shard]] = [[], []]
    for name, tensor in tensors.items():
        shape = tuple(tensor.shape)
        for offset, size in data.draw(st.composite(boxes)(shape, 3)) if shape else [((), ())]:
            shard = Shard(name, layouts[name], offset, size, partial(memory, cut_out(tensor, offset, size)))
            held[data.draw(st.integers(0, 1))].append(shard)
    with TemporaryFile() as here, TemporaryFile() as sent:
        for each in held:
            write_spread(here.fileno(), Parts(layouts, each))
        decoder = msgspec.msgpack.Decoder(RankPart)
        parts = [decoder.decode(msgspec.msgpack.encode(part)) for part in spread_parts(Parts(layouts, held[1]))]
        # The other node is the first: its parts come before the file has its size.
        for part in data.draw(st.permutations(parts)):
            write_part_of(sent.fileno(), part)
        write_spread(sent.fileno(), Parts(layouts, held[0]))
        assert sent.read() == here.read()


def saved_by(folder: Path, tensors: dict[str, torch.Tensor], ranks: int) -> list[ShardManifest]:
    parts = [
        write_part(folder, "optimizer", shards_of(tensors, rank, ranks), rank=rank, ranks=ranks)
        for rank in range(ranks)
    ]
    write_manifest(folder, "optimizer", parts)
    return parts


@given(ranks=st.integers(1, 5), shapes=st.lists(SHAPES, max_size=5))
@settings(max_examples=40, deadline=None)
def test_ranks_that_hold_everything_share_the_writing(ranks: int, shapes: list[tuple[int, ...]]) -> None:
    tensors = {f"{number}": made(shape, torch.float32, number) for number, shape in enumerate(shapes)}
    with TemporaryDirectory() as place:
        parts = saved_by(Path(place), tensors, ranks)
        found = load_whole(Path(place), "optimizer")
        assert found.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert bytes(memory(found[name])) == bytes(memory(tensor))
        numbers = sum(math.prod(each.parts[0].size) for part in parts for each in part.tensors)
        assert numbers == sum(each.numel() for each in tensors.values()), "each number is written once"


def test_what_is_missing_cut_off_changed_or_of_another_model_is_named(tmp_path: Path) -> None:
    tensors = {"exp_avg.weight": made((8, 3), torch.float32, 1), "step.weight": made((), torch.float32, 2)}
    saved_by(tmp_path, tensors, 3)
    file = tmp_path / "optimizer.rank_1_of_3.safetensors"
    whole = file.read_bytes()
    with pytest.raises(DataError, match=r"of another model: 'exp_avg.weight' is float32 \(8, 3\) there, and float32"):
        ShardedTensors.open(tmp_path, "optimizer").check_fits(
            {"exp_avg.weight": TensorLayout("float32", (8, 4)), "step.weight": TensorLayout("float32", ())}
        )
    with pytest.raises(DataError, match="and nothing here"):
        ShardedTensors.open(tmp_path, "optimizer").check_fits({"exp_avg.weight": TensorLayout("float32", (8, 3))})
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(DataError, match="optimizer of rank 1 has other bytes than were written"):
        ShardedTensors.open(tmp_path, "optimizer").verify()
    ShardedTensors.open(tmp_path, "optimizer").verify(reader=0, readers=2)
    file.write_bytes(whole[:-4])
    with pytest.raises(DataError, match=f"of rank 1 has {len(whole) - 4} bytes instead of {len(whole)}"):
        ShardedTensors.open(tmp_path, "optimizer")
    file.unlink()
    with pytest.raises(DataError, match="optimizer of rank 1 is missing") as missing:
        ShardedTensors.open(tmp_path, "optimizer")
    assert missing.value.where == str(file)
    with pytest.raises(DataError, match="no manifest"):
        ShardedTensors.open(tmp_path, "model")


def test_a_manifest_of_a_stranger_is_not_believed(tmp_path: Path) -> None:
    saved_by(tmp_path, {"weight": made((8, 3), torch.float32, 1)}, 2)
    path = tmp_path / "optimizer.shards.json"
    text = path.read_text()
    for before, after, why in (
        ("optimizer.rank_0", "../rank_0", "not the name of a file"),
        ("[4,0]", "[3,0]", "overlap"),
        ("[4,0]", "[5,0]", "outside"),
        ('"ranks":2', '"ranks":3', "none of"),
        ('"float32"', '"object"', "dtype"),
        ('"format":1', '"format":2', "format 2"),
    ):
        compact = "".join(text.split())
        assert before in compact
        path.write_text(compact.replace(before, after))
        with pytest.raises(DataError, match=why):
            ShardedTensors.open(tmp_path, "optimizer")


def test_ranks_that_wrote_no_whole_tensor_are_refused(tmp_path: Path) -> None:
    tensors = {"weight": made((8, 3), torch.float32, 1)}
    part = write_part(tmp_path, "model", shards_of(tensors, 0, 2), rank=0, ranks=2)
    with pytest.raises(WorkError, match="12 of 24 numbers"):
        write_manifest(tmp_path, "model", [part])


def test_a_part_that_went_to_another_folder_makes_no_checkpoint(tmp_path: Path) -> None:
    """As if the second rank's node had a disk of its own at that path."""
    tensors = {"weight": made((8, 3), torch.float32, 1)}
    (tmp_path / "elsewhere").mkdir()
    folders = (tmp_path, tmp_path / "elsewhere")
    parts = [
        write_part(folder, "model", shards_of(tensors, rank, 2), rank=rank, ranks=2)
        for rank, folder in enumerate(folders)
    ]
    with pytest.raises(WorkError, match="rank 1 has written its part of the model, and it is not to be seen") as raised:
        write_manifest(tmp_path, "model", parts)
    assert raised.value.field == "checkpoint_root_dir"
    assert not (tmp_path / "model.shards.json").exists()


@given(piece_bytes=st.integers(1, 200), shapes=st.lists(SHAPES, max_size=4))
@settings(max_examples=40, deadline=None)
def test_pieces_of_any_size_make_the_whole_file(piece_bytes: int, shapes: list[tuple[int, ...]]) -> None:
    tensors = {f"{number}": made(shape, torch.float32, number) for number, shape in enumerate(shapes)}
    layouts = {name: TensorLayout("float32", tuple(each.shape)) for name, each in tensors.items()}
    whole = [
        Shard(name, layouts[name], (0,) * each.ndim, tuple(each.shape), partial(memory, each))
        for name, each in tensors.items()
    ]
    with TemporaryFile() as in_pieces, TemporaryFile() as at_once, pytest.MonkeyPatch.context() as patched:
        patched.setattr(spread, "_PIECE_BYTES", piece_bytes)
        write_shards(in_pieces.fileno(), layouts, spread.pieces_on_first(tensors))
        write_shards(at_once.fileno(), layouts, iter(whole))
        assert in_pieces.read() == at_once.read()
