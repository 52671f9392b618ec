"""The weights of one version in a file without a name: every rank writes its parts to where they belong.

So nothing is gathered: a rank has one part at a time on its host, and the trainer process maps the file. It is gone
with the last process that has it open.
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
    """The weights of an engine as they are now, in parts; to be read before anything else is asked of it."""

    @property
    def exact(self) -> bool:
        """False if they are rounded to the dtype that explorers run the model in."""
        ...

    def layouts(self) -> Mapping[str, TensorLayout]:
        """The dtype and whole shape of each tensor, in one order on all ranks."""
        ...

    def shards(self) -> Iterator[Shard]:
        """The parts that this rank gives, one after the other; each number is given by one rank.

        All ranks read theirs to the end, at once: giving one may be a collective.
        """
        ...


@runtime_checkable
class SpreadingEngine(Protocol):
    """An engine of a rank that gives its weights in parts. Of others rank 0 gives them all, from its `snapshot`."""

    def spread(self) -> SpreadWeights:
        """The weights as they are now."""
        ...


class SpooledSnapshot:
    """Implements `WeightsSnapshot`: the file, filled by all ranks."""

    kind = BYTES

    def __init__(self, file: IO[bytes], *, exact: bool, tied: Mapping[str, str]) -> None:
        self.exact = exact
        self._file = file
        self._tied = tied

    def weights(self) -> Weights:
        """The tensors, mapped."""
        # By its number: it has no name, and is mapped anew, so that it may be read after this snapshot is gone.
        found = dict(safetensors.read(Path(f"/dev/fd/{self._file.fileno()}")))
        return found | {name: found[other] for name, other in self._tied.items()}


def new_spool(folder: str) -> IO[bytes]:
    """An empty file without a name on the disk of `folder`, or of temporary files if that is not there."""
    return TemporaryFile(dir=folder if Path(folder).is_dir() else gettempdir())


def write_spread(descriptor: int, weights: SpreadWeights) -> None:
    """Writes this rank's parts. Raises OSError."""
    write_shards(descriptor, weights.layouts(), weights.shards())


def write_shards(descriptor: int, layouts: Mapping[str, TensorLayout], shards: Iterator[Shard]) -> None:
    """Writes parts of tensors of these layouts, each when it is given. Raises OSError."""
    header, begins, end = _places(layouts)
    # Every rank: whoever is first gives the file its size, and the others change nothing.
    os.ftruncate(descriptor, end)
    _write_at(descriptor, header, 0)
    for shard in shards:
        _write_shard(descriptor, shard, begins[shard.name])
        del shard  # its tensor goes before the next one is made


def spread_parts(weights: SpreadWeights) -> Iterator[RankPart]:
    """This rank's parts, for a file that another machine has; one is on the host at a time."""
    _, begins, end = _places(weights.layouts())
    for shard in weights.shards():
        data = shard.data()
        if data.nbytes:
            yield RankPart(
                file_size_bytes=end,
                begin=begins[shard.name],
                name=shard.name,
                dtype=shard.whole.dtype,
                shape=shard.whole.shape,
                offset=shard.offset,
                size=shard.size,
                data=bytes(data),
            )
        del shard, data


def write_part_of(descriptor: int, part: RankPart) -> None:
    """Writes what another machine's rank sent. Raises OSError."""
    # The map of a part that is no row of its tensor reaches no further than the file does.
    os.ftruncate(descriptor, part.file_size_bytes)
    whole = TensorLayout(part.dtype, part.shape)
    _write_shard(descriptor, Shard(part.name, whole, part.offset, part.size, lambda: memoryview(part.data)), part.begin)


def _places(layouts: Mapping[str, TensorLayout]) -> tuple[bytes, dict[str, int], int]:
    """The header of the file, where each tensor begins, and where the last one ends."""
    header = safetensors.header_of(layouts)
    begins: dict[str, int] = {}
    end = len(header)
    for name, layout in layouts.items():
        begins[name] = end
        end += size_bytes(layout.dtype, layout.shape)
    return header, begins, end


def write_whole(descriptor: int, weights: Weights) -> dict[str, str]:
    """Writes all tensors, tied ones once; returns the names that are not written, with the one that stands for them."""
    names: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name in sorted(weights):
        first = names.setdefault(id(weights[name]), name)
        if first != name:
            tied[name] = first
    kept = {name: weights[name] for name in names.values()}
    end = 0
    header = safetensors.header_of({name: TensorLayout(each.dtype, each.shape) for name, each in kept.items()})
    for data in _data_of(header, kept):
        _write_at(descriptor, data, end)
        end += len(data)
    return tied


def _data_of(header: bytes, weights: Weights) -> Iterable[bytes | memoryview]:
    yield header
    for each in weights.values():
        yield each.data


def _write_shard(descriptor: int, shard: Shard, begin: int) -> None:
    data = shard.data()
    if not data.nbytes:
        return
    shape = shard.whole.shape
    item = ITEM_BYTES[shard.whole.dtype]
    if shard.size[1:] == shape[1:]:  # whole rows lie in a row
        row_bytes = data.nbytes // shard.size[0] if shape else 0
        _write_at(descriptor, data, begin + (shard.offset[0] * row_bytes if shape else 0))
        return
    words = np.dtype(f"u{item}")
    # A map begins at a page.
    skipped = begin % mmap.ALLOCATIONGRANULARITY
    length = skipped + size_bytes(shard.whole.dtype, shape)
    with mmap.mmap(descriptor, length, offset=begin - skipped) as mapped:
        whole: NDArray[Any] = np.frombuffer(mapped, np.uint8)[skipped:].view(words).reshape(shape)
        box = tuple(slice(at, at + extent) for at, extent in zip(shard.offset, shard.size, strict=True))
        whole[box] = np.frombuffer(data, words).reshape(shard.size)
        del whole  # a map that is looked at cannot be closed


def _write_at(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    left = memoryview(data)
    while left:
        written = os.pwrite(descriptor, left, offset)
        left = left[written:]
        offset += written
