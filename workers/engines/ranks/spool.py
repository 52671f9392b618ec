"""The weights of one version in an unnamed file: every rank writes its parts at the right offsets.

Nothing is gathered: a rank copies one part at a time to its host, and the trainer process maps the file. The file is
deleted once no process has it open.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import IO, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rftd.workers.engines.ranks.messages import RankPart
from rftd.workers.weights import safetensors
from rftd.workers.weights.channel import BYTES
from rftd.workers.weights.shards import Shard
from rftd.workers.weights.tensor_bytes import ITEM_BYTES, TensorLayout, Weights, size_bytes


class SpreadWeights(Protocol):
    """An engine's current weights in parts, one set on each rank; readable until the engine's next call."""

    @property
    def exact(self) -> bool:
        """False if the numbers were rounded to the explorers' dtype."""
        ...

    def layouts(self) -> Mapping[str, TensorLayout]:
        """Returns dtype and complete shape of each tensor, in the same order on all ranks."""
        ...

    def shards(self) -> Iterator[Shard]:
        """Yields this rank's parts one after the other; each number of a tensor is yielded by exactly one rank.

        All ranks must read their parts to the end, at the same time, because a part may need the other ranks.
        """
        ...


@runtime_checkable
class SpreadingEngine(Protocol):
    """A rank's engine with weights in parts. For other engines, rank 0's `snapshot` has all weights."""

    def spread(self) -> SpreadWeights:
        """Returns the current weights, to be read by all ranks at the same time."""
        ...


class SpooledSnapshot:
    """Snapshot of weights in the file written by all ranks; implements `WeightsSnapshot`."""

    kind = BYTES
    """Kind of the snapshot: bytes of tensors."""

    def __init__(self, file: IO[bytes], *, exact: bool, tied: Mapping[str, str]) -> None:
        """`file` is the complete file; `tied` maps each omitted name to the written tensor's name; `exact` as in
        `SpreadWeights`.
        """
        self.exact = exact
        self._file = file
        self._tied = tied

    def weights(self) -> Weights:
        """Returns the tensors as memory maps of the file, tied names included."""
        # Opened by its descriptor: the file has no name, and a new map stays readable after this snapshot is deleted.
        tensors = dict(safetensors.read(Path(f"/dev/fd/{self._file.fileno()}")))
        return tensors | {name: tensors[written_name] for name, written_name in self._tied.items()}


def new_spool(folder: str) -> IO[bytes]:
    """Opens an empty file without a name on the disk of `folder`, or of temporary files if there is no folder."""
    return TemporaryFile(dir=folder if Path(folder).is_dir() else gettempdir())


def write_spread(descriptor: int, weights: SpreadWeights) -> None:
    """Writes this rank's parts into the file. Raises OSError."""
    write_shards(descriptor, weights.layouts(), weights.shards())


def write_shards(descriptor: int, layouts: Mapping[str, TensorLayout], shards: Iterator[Shard]) -> None:
    """Writes parts of tensors into the file as they are yielded; `layouts` describes all tensors. Raises OSError."""
    header, begins, end = _file_layout(layouts)
    # Every rank sets the same size, whichever is first.
    os.ftruncate(descriptor, end)
    _write_at(descriptor, header, 0)
    for shard in shards:
        _write_shard(descriptor, shard, begins[shard.name])
        del shard  # frees the tensor before the next one is made


def spread_parts(weights: SpreadWeights) -> Iterator[RankPart]:
    """Yields this rank's parts, for a file on another machine; one part is on the host at a time."""
    _, begins, end = _file_layout(weights.layouts())
    for shard in weights.shards():
        content = shard.data()
        if content.nbytes:
            yield RankPart(
                file_size_bytes=end,
                begin=begins[shard.name],
                name=shard.name,
                dtype=shard.whole.dtype,
                shape=shard.whole.shape,
                offset=shard.offset,
                size=shard.size,
                data=bytes(content),
            )
        del shard, content


def write_part_of(descriptor: int, weights_part: RankPart) -> None:
    """Writes a part received from a rank on another machine into the file. Raises OSError."""
    # A part that is not whole rows is mapped, and the map must not reach beyond the file's end.
    os.ftruncate(descriptor, weights_part.file_size_bytes)
    whole = TensorLayout(weights_part.dtype, weights_part.shape)
    _write_shard(
        descriptor,
        Shard(weights_part.name, whole, weights_part.offset, weights_part.size, lambda: memoryview(weights_part.data)),
        weights_part.begin,
    )


def _file_layout(layouts: Mapping[str, TensorLayout]) -> tuple[bytes, dict[str, int], int]:
    """Returns the header of the file, the offset of each tensor, and the end of the last."""
    header = safetensors.header_of(layouts)
    offsets: dict[str, int] = {}
    end = len(header)
    for name, layout in layouts.items():
        offsets[name] = end
        end += size_bytes(layout.dtype, layout.shape)
    return header, offsets, end


def write_whole(descriptor: int, weights: Weights) -> dict[str, str]:
    """Writes complete tensors, tied ones once; returns the omitted names, each with the name of the written tensor."""
    names: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name in sorted(weights):
        first = names.setdefault(id(weights[name]), name)
        if first != name:
            tied[name] = first
    written_weights = {name: weights[name] for name in names.values()}
    end = 0
    header = safetensors.header_of(
        {name: TensorLayout(tensor.dtype, tensor.shape) for name, tensor in written_weights.items()}
    )
    for chunk in _chunks_of_file(header, written_weights):
        _write_at(descriptor, chunk, end)
        end += len(chunk)
    return tied


def _chunks_of_file(header: bytes, weights: Weights) -> Iterable[bytes | memoryview]:
    """Yields the bytes of a safetensors file: header, then tensors."""
    yield header
    for tensor in weights.values():
        yield tensor.data


def _write_shard(descriptor: int, shard: Shard, begin: int) -> None:
    """Writes one part of a tensor; `begin` is the tensor's offset in the file."""
    content = shard.data()
    if not content.nbytes:
        return
    shape = shard.whole.shape
    item_bytes = ITEM_BYTES[shard.whole.dtype]
    if shard.size[1:] == shape[1:]:  # whole rows are contiguous
        row_bytes = content.nbytes // shard.size[0] if shape else 0
        _write_at(descriptor, content, begin + (shard.offset[0] * row_bytes if shape else 0))
        return
    words = np.dtype(f"u{item_bytes}")
    # A map begins at a page boundary.
    skipped = begin % mmap.ALLOCATIONGRANULARITY
    length = skipped + size_bytes(shard.whole.dtype, shape)
    with mmap.mmap(descriptor, length, offset=begin - skipped) as mapped:
        whole: NDArray[Any] = np.frombuffer(mapped, np.uint8)[skipped:].view(words).reshape(shape)
        box = tuple(slice(at, at + extent) for at, extent in zip(shard.offset, shard.size, strict=True))
        whole[box] = np.frombuffer(content, words).reshape(shard.size)
        del whole  # a map with views cannot be closed


def _write_at(descriptor: int, content: bytes | memoryview, offset: int) -> None:
    """Writes all bytes at an offset, in as many system calls as needed."""
    remaining = memoryview(content)
    while remaining:
        written_bytes = os.pwrite(descriptor, remaining, offset)
        remaining = remaining[written_bytes:]
        offset += written_bytes
