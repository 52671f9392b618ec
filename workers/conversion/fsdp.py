"""FSDP's files: each rank's part of the model's state, as saved by verl and Trinity-RFT.

actor/model_world_size_W_rank_R.pt   the state of rank R: DTensors, and plain tensors equal on all ranks
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
"""Name of a rank's file, with the number of ranks and the rank."""

RankState = Mapping[str, StoredTensor | SpreadTensor]


class _FsdpConfig(msgspec.Struct, frozen=True):
    world_size: int


def is_fsdp(folder: Path) -> bool:
    """True if the folder contains a rank's part of a model, written by FSDP."""
    return any(_FILE.fullmatch(path.name) for path in folder.iterdir())


def fsdp_tensors(folder: Path) -> list[WholeTensor]:
    """Returns the model's tensors. Raises DataError, naming the file that is missing, damaged, foreign or of another
    model.
    """
    states = {path: _state(path) for path in _files(folder)}
    first, *later = states
    for path in later:
        if wrong := sorted(states[path].keys() ^ states[first].keys()):
            raise DataError(
                f"it belongs to another model than {first.name}: {wrong[0]!r} is in one of them only",
                where=str(path),
                fix=FIX,
            )
    return [_whole(name, {path: state[name] for path, state in states.items()}) for name in states[first]]


def _files(folder: Path) -> list[Path]:
    """Returns the files of all ranks, in the order of ranks."""
    matches = [match for path in folder.iterdir() if (match := _FILE.fullmatch(path.name))]
    worlds = sorted({int(match[1]) for match in matches})
    if len(worlds) > 1:
        raise DataError(
            f"it holds files of {worlds[0]} and of {worlds[1]} ranks",
            where=str(folder),
            fix="remove the files that do not belong to this checkpoint",
        )
    config = folder / "fsdp_config.json"
    ranks = worlds[0]
    if config.is_file():
        try:
            ranks = json_decoder(_FsdpConfig).decode(config.read_bytes()).world_size
        except (OSError, *UNREADABLE) as error:
            raise DataError(f"no configuration of FSDP: {error}", where=str(config), fix=FIX) from error
    present_ranks = {int(match[2]) for match in matches}
    missing = next((rank for rank in range(max(ranks, worlds[0])) if rank not in present_ranks), None)
    if missing is not None:
        name = f"model_world_size_{worlds[0]}_rank_{missing}.pt"
        raise DataError(f"the file of rank {missing} of {ranks} is missing", where=str(folder / name), fix=FIX)
    return [folder / f"model_world_size_{worlds[0]}_rank_{rank}.pt" for rank in range(worlds[0])]


def _state(path: Path) -> RankState:
    """Returns the tensors of a rank's file by name. Raises DataError for anything else."""
    state: Any = read_torch_file(path)
    if not isinstance(state, dict) or not state:
        raise DataError("the file holds no state of a model", where=str(path), fix=FIX)
    for name, tensor in state.items():
        if not isinstance(name, str) or not isinstance(tensor, (StoredTensor, SpreadTensor)):
            raise DataError(f"{str(name)[:200]!r} is not a tensor of a model", where=str(path), fix=FIX)
    return state


def _whole(name: str, tensors: Mapping[Path, StoredTensor | SpreadTensor]) -> WholeTensor:
    """Returns one tensor made of the parts of all ranks. Raises DataError if ranks disagree about it."""
    spread = {path: tensor for path, tensor in tensors.items() if isinstance(tensor, SpreadTensor)}
    plain = next((tensor for tensor in tensors.values() if isinstance(tensor, StoredTensor)), None)
    if plain is not None:
        # Equal on all ranks: FSDP spreads every tensor that may differ.
        for path, tensor in tensors.items():
            if not isinstance(tensor, StoredTensor) or (tensor.dtype, tensor.shape) != (plain.dtype, plain.shape):
                raise _mismatch(name, path, next(iter(tensors)))
        return whole(name, plain.shape, [TensorPart((0,) * len(plain.shape), plain)])
    first_path = next(iter(spread))
    first = spread[first_path]
    mesh = [1 + max(tensor.coordinate[dim] for tensor in spread.values()) for dim in range(len(first.placements))]
    parts = []
    for path, tensor in spread.items():
        if (tensor.shape, tensor.placements) != (first.shape, first.placements):
            raise _mismatch(name, path, first_path)
        # Of equal copies the first one.
        if all(at == 0 for at, cut in zip(tensor.coordinate, tensor.placements, strict=True) if cut is None):
            parts.append(TensorPart(_offset(name, tensor, mesh, path), tensor.local))
    return whole(name, first.shape, parts)


def _offset(name: str, tensor: SpreadTensor, mesh: list[int], path: Path) -> tuple[int, ...]:
    """Returns the offset of a rank's part: torch cuts into equal parts, rounded up; the last ones are smaller."""
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


def _mismatch(name: str, path: Path, first: Path) -> DataError:
    return DataError(f"{name!r} is another tensor than in {first.name}", where=str(path), fix=FIX)
