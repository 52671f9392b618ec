"""FSDP's files: each rank's part of the model's state, as verl and Trinity-RFT save it.

actor/model_world_size_W_rank_R.pt   the state of rank R: DTensors, and plain tensors that all ranks hold alike
actor/fsdp_config.json               W once more
actor/huggingface/                   configuration and tokenizer
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from rftd.ops.decoding import UNREADABLE, json_decoder
from rftd.ops.errors import DataError
from rftd.workers.conversion.torch_file import FIX, SpreadTensor, StoredTensor, read_torch_file
from rftd.workers.conversion.whole_tensor import TensorPart, WholeTensor, whole

_FILE: Final = re.compile(r"model_world_size_([0-9]{1,6})_rank_([0-9]{1,6})\.pt")

RankState = Mapping[str, StoredTensor | SpreadTensor]


class _FsdpConfig(msgspec.Struct, frozen=True):
    world_size: int


def is_fsdp(folder: Path) -> bool:
    """True if a rank of FSDP wrote its part of a model there."""
    return any(_FILE.fullmatch(path.name) for path in folder.iterdir())


def fsdp_tensors(folder: Path) -> list[WholeTensor]:
    """The model's tensors. Raises DataError, naming the file that is missing, damaged, foreign or of another model."""
    states = {path: _state(path) for path in _files(folder)}
    first, *others = states
    for path in others:
        if wrong := sorted(states[path].keys() ^ states[first].keys()):
            raise DataError(
                f"it is of another model than {first.name}: {wrong[0]!r} is in one of them only",
                where=str(path),
                fix=FIX,
            )
    return [_whole(name, {path: state[name] for path, state in states.items()}) for name in states[first]]


def _files(folder: Path) -> list[Path]:
    """The files of all ranks, in their order."""
    matches = [match for path in folder.iterdir() if (match := _FILE.fullmatch(path.name))]
    worlds = sorted({int(match[1]) for match in matches})
    if len(worlds) > 1:
        raise DataError(
            f"it holds files of {worlds[0]} and of {worlds[1]} ranks",
            where=str(folder),
            fix="take away those that do not belong to this checkpoint",
        )
    config = folder / "fsdp_config.json"
    ranks = worlds[0]
    if config.is_file():
        try:
            ranks = json_decoder(_FsdpConfig).decode(config.read_bytes()).world_size
        except (OSError, *UNREADABLE) as error:
            raise DataError(f"no configuration of FSDP: {error}", where=str(config), fix=FIX) from error
    there = {int(match[2]) for match in matches}
    missing = next((rank for rank in range(max(ranks, worlds[0])) if rank not in there), None)
    if missing is not None:
        name = f"model_world_size_{worlds[0]}_rank_{missing}.pt"
        raise DataError(f"the file of rank {missing} of {ranks} is missing", where=str(folder / name), fix=FIX)
    return [folder / f"model_world_size_{worlds[0]}_rank_{rank}.pt" for rank in range(worlds[0])]


def _state(path: Path) -> RankState:
    value: Any = read_torch_file(path)
    if not isinstance(value, dict) or not value:
        raise DataError("the file holds no state of a model", where=str(path), fix=FIX)
    for name, each in value.items():
        if not isinstance(name, str) or not isinstance(each, (StoredTensor, SpreadTensor)):
            raise DataError(f"{str(name)[:200]!r} is no tensor of a model", where=str(path), fix=FIX)
    return value


def _whole(name: str, tensors: Mapping[Path, StoredTensor | SpreadTensor]) -> WholeTensor:
    spread = {path: each for path, each in tensors.items() if isinstance(each, SpreadTensor)}
    plain = next((each for each in tensors.values() if isinstance(each, StoredTensor)), None)
    if plain is not None:
        # All ranks hold it, alike: FSDP spreads whatever may differ.
        for path, each in tensors.items():
            if not isinstance(each, StoredTensor) or (each.dtype, each.shape) != (plain.dtype, plain.shape):
                raise _other(name, path, next(iter(tensors)))
        return whole(name, plain.shape, [TensorPart((0,) * len(plain.shape), plain)])
    first_path = next(iter(spread))
    first = spread[first_path]
    mesh = [1 + max(each.coordinate[dim] for each in spread.values()) for dim in range(len(first.placements))]
    parts = []
    for path, each in spread.items():
        if (each.shape, each.placements) != (first.shape, first.placements):
            raise _other(name, path, first_path)
        # Of equal copies the first one.
        if all(at == 0 for at, cut in zip(each.coordinate, each.placements, strict=True) if cut is None):
            parts.append(TensorPart(_offset(name, each, mesh, path), each.local))
    return whole(name, first.shape, parts)


def _offset(name: str, tensor: SpreadTensor, mesh: list[int], path: Path) -> tuple[int, ...]:
    """The place of a rank's part: torch cuts into parts of equal size, rounded up; the last ones are smaller."""
    offset = [0] * len(tensor.shape)
    extent = list(tensor.shape)
    for at, dim, ranks in zip(tensor.coordinate, tensor.placements, mesh, strict=True):
        if dim is None:
            continue
        if dim >= len(extent):
            raise DataError(f"{name!r} of shape {tensor.shape} is cut along dimension {dim}", where=str(path), fix=FIX)
        step = -(-extent[dim] // ranks)
        begin = min(at * step, extent[dim])
        offset[dim] += begin
        extent[dim] = min(step, extent[dim] - begin)
    if tuple(extent) != tensor.local.shape:
        raise DataError(
            f"the part of {name!r} is of shape {tensor.local.shape} instead of {tuple(extent)}",
            where=str(path),
            fix=FIX,
        )
    return tuple(offset)


def _other(name: str, path: Path, first: Path) -> DataError:
    return DataError(f"{name!r} is another tensor than in {first.name}", where=str(path), fix=FIX)
