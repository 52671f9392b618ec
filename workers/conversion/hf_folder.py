"""The folder that transformers loads: configuration, tokenizer and weights; under the final name whole or absent.

The folder is written under a temporary name, made durable and renamed. The next program deletes files left there by a
killed one.
"""

from __future__ import annotations

import fcntl
import math
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rftd.ops.decoding import UNREADABLE, json_decoder
from rftd.ops.errors import ConflictError, DataError, DiskFullError, WorkError
from rftd.storage.files.checkpoints import Staged, fsync_tree, place_folder
from rftd.workers.conversion.torch_file import FIX
from rftd.workers.conversion.whole_tensor import DTYPES, WholeTensor, cast
from rftd.workers.weights import safetensors
from rftd.workers.weights.tensor_bytes import ITEM_BYTES, size_bytes

CONFIG: Final = "config.json"
_WEIGHTS: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_FILE_BYTES: Final = 5_000_000_000
"""Most bytes of tensors in one file, the limit of transformers for years."""
_SENT_BYTES: Final = 64 << 20
"""Bytes of a file written out to the disk together, during the writing of the following ones."""
_SPARE_BYTES: Final = 64 << 20
_DESCRIPTIONS: Final = (".jinja", ".json", ".model", ".py", ".txt")
"""Suffixes of files beside weights, possibly needed by a model or a tokenizer."""
_DESCRIPTION_BYTES: Final = 256 << 20


class _WeightIndex(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


class _ModelConfig(msgspec.Struct, frozen=True):
    dtype: str | None = None
    torch_dtype: str | None = None


def dtype_of(folder: Path) -> str | None:
    """Returns the type of a model's numbers, as named in config.json; None for an unknown type, or without any."""
    try:
        config = json_decoder(_ModelConfig).decode((folder / CONFIG).read_bytes())
    except (OSError, *UNREADABLE):
        return None
    named = (config.dtype or config.torch_dtype or "").removeprefix("torch.")
    return named if named in DTYPES else None


def weight_files(folder: Path) -> list[Path]:
    """Returns the safetensors files of a model folder: those in its index, or the single file."""
    index = folder / _INDEX
    if not index.is_file():
        return [folder / _WEIGHTS]
    names = json_decoder(_WeightIndex).decode(index.read_bytes()).weight_map.values()
    return [folder / name for name in dict.fromkeys(names)]


def is_whole(folder: Path) -> bool:
    """True if the folder has a configuration and all of its safetensors files, none truncated."""
    if not (folder / CONFIG).is_file():
        return False
    try:
        for path in weight_files(folder) or [folder / _WEIGHTS]:
            safetensors.places(path)
    except (OSError, WorkError, *UNREADABLE):
        return False
    return True


@contextmanager
def _locked_empty(temporary: Path) -> Iterator[None]:
    """Makes the folder, empty and locked. Raises ConflictError while another program fills it."""
    temporary.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The former owner may have renamed the folder in between: then this is the finished folder.
            is_own = os.path.samestat(os.fstat(descriptor), temporary.stat())
        except (BlockingIOError, FileNotFoundError):
            is_own = False
        if not is_own:
            raise ConflictError("another rftd convert writes this folder", where=str(temporary), fix="wait for it")
        for remnant in temporary.iterdir():
            shutil.rmtree(remnant) if remnant.is_dir() and not remnant.is_symlink() else remnant.unlink()
        yield
    finally:
        os.close(descriptor)


def write_hf_folder(
    target: Path,
    described_by: Sequence[Path],
    tensors: Sequence[WholeTensor],
    *,
    on_bytes: Callable[[int], None],
) -> None:
    """Writes the folder: descriptions out of `described_by`, the later ones first; the tensors, each in its dtype.

    `on_bytes` receives the bytes of tensors written so far. Raises DataError for damage, DiskFullError, OSError; the
    target is then unchanged.
    """
    temporary = target.with_name(f".{target.name}.converting")
    with _locked_empty(temporary):
        try:
            _check_room(temporary, tensors)
            for folder in described_by:
                _copy_descriptions(folder, temporary)
            if target.is_dir():
                _copy_rest(target, temporary)
            _write_dtype(temporary / CONFIG, tensors)
            _write_weights(temporary, tensors, on_bytes)
            fsync_tree(temporary)
            staged = Staged(temporary, target.with_name(f".{target.name}.replaced"), ())
            place_folder(staged, target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        staged.clear()


def _check_room(folder: Path, tensors: Sequence[WholeTensor]) -> None:
    """Raises DiskFullError if the disk has less free space than the tensors need."""
    needed = sum(size_bytes(*tensor.written) for tensor in tensors) + _SPARE_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DiskFullError(
            f"the weights need {needed} bytes, {free} are free", where=str(folder), fix="make room there"
        )


def _copy_descriptions(source: Path, folder: Path) -> None:
    """Copies configuration, tokenizer, templates and code beside the weights into the folder."""
    for path in sorted(source.iterdir()):
        is_description = path.suffix in _DESCRIPTIONS and not path.name.endswith(".index.json")
        if is_description and path.is_file() and path.stat().st_size <= _DESCRIPTION_BYTES:
            shutil.copyfile(path, folder / path.name)


def _copy_rest(target: Path, folder: Path) -> None:
    """Copies the files of a replaced folder, except weights, because the weights were not whole."""
    for path in target.iterdir():
        if path.name == _INDEX or path.suffix in (".safetensors", ".bin") or path.is_symlink():
            continue
        if path.is_dir():
            shutil.copytree(path, folder / path.name, symlinks=True, dirs_exist_ok=True)
        elif not (folder / path.name).exists():
            shutil.copyfile(path, folder / path.name)


def _write_dtype(path: Path, tensors: Sequence[WholeTensor]) -> None:
    """Sets the weights' own dtype in the configuration: transformers would round loaded weights to another one."""
    try:
        config = json_decoder(dict[str, Any]).decode(path.read_bytes())
    except (OSError, *UNREADABLE) as error:
        raise DataError(f"no configuration of a model: {error}", where=str(path), fix=FIX) from error
    numbers = Counter[str]()
    for tensor in tensors:
        if tensor.written.dtype in DTYPES:
            numbers[tensor.written.dtype] += math.prod(tensor.written.shape)
    if not numbers:
        return
    [(dtype, _)] = numbers.most_common(1)
    for section in (config, config.get("text_config")):
        for key in ("dtype", "torch_dtype"):
            if isinstance(section, dict) and isinstance(section.get(key), str):
                section[key] = dtype
    path.write_bytes(msgspec.json.format(msgspec.json.encode(config), indent=2) + b"\n")


def _write_weights(folder: Path, tensors: Sequence[WholeTensor], on_bytes: Callable[[int], None]) -> None:
    """Writes the tensors into one or several safetensors files, with an index for several."""
    files = _divided(tensors)
    names = [_WEIGHTS] if len(files) == 1 else [f"model-{n:05}-of-{len(files):05}.safetensors" for n in _from_1(files)]
    written_bytes = 0
    for name, file_tensors in zip(names, files, strict=True):
        for block_bytes in _write_file(folder / name, file_tensors):
            written_bytes += block_bytes
            on_bytes(written_bytes)
    if len(files) > 1:
        index = {"metadata": {"total_size": written_bytes}, "weight_map": _weight_map(names, files)}
        (folder / _INDEX).write_bytes(msgspec.json.format(msgspec.json.encode(index), indent=2) + b"\n")


def _write_file(path: Path, tensors: Sequence[WholeTensor]) -> Iterator[int]:
    """Writes tensors into one file; yields the bytes of each block once written."""
    with path.open("wb", buffering=0) as file:
        file.write(safetensors.header_of({tensor.name: tensor.written for tensor in tensors}))
        sent_bytes = 0
        for tensor in tensors:
            for block in tensor.blocks():
                _refuse_nan(tensor, block)
                words = _cast(tensor, block)
                _write_all(file, words)
                yield words.nbytes
                if file.tell() - sent_bytes >= _SENT_BYTES:
                    # Linux begins to write out pages it may drop: little is left for the fsync at the end.
                    os.posix_fadvise(file.fileno(), sent_bytes, file.tell() - sent_bytes, os.POSIX_FADV_DONTNEED)
                    sent_bytes = file.tell()


def _cast(tensor: WholeTensor, block: NDArray[Any]) -> NDArray[Any]:
    """Returns a block in the tensor's written dtype. Raises DataError, naming the tensor, for a number out of range."""
    try:
        return cast(block, tensor.layout.dtype, tensor.written.dtype)
    except DataError as error:
        raise DataError(f"{tensor.name!r}: {error.what}", where=str(tensor.files()[0]), fix=error.fix) from error


def _divided(tensors: Sequence[WholeTensor]) -> list[list[WholeTensor]]:
    """Returns the tensors divided into files of at most `_FILE_BYTES`, in order."""
    files: list[list[WholeTensor]] = [[]]
    filled_bytes = 0
    for tensor in tensors:
        needed_bytes = size_bytes(*tensor.written)
        if files[-1] and filled_bytes + needed_bytes > _FILE_BYTES:
            files.append([])
            filled_bytes = 0
        files[-1].append(tensor)
        filled_bytes += needed_bytes
    return files


def _from_1(files: Sequence[object]) -> range:
    return range(1, len(files) + 1)


def _weight_map(names: Sequence[str], files: Sequence[Sequence[WholeTensor]]) -> Mapping[str, str]:
    return {tensor.name: name for name, file_tensors in zip(names, files, strict=True) for tensor in file_tensors}


def _write_all(file: Any, block: NDArray[Any]) -> None:
    remaining = block.view(np.uint8).data
    while remaining.nbytes:
        remaining = remaining[file.write(remaining) :]


def _refuse_nan(tensor: WholeTensor, block: NDArray[Any]) -> None:
    """Raises DataError for NaN: a model with a single NaN answers nothing."""
    if _has_nan(tensor.layout.dtype, block):
        files = ", ".join(path.name for path in tensor.files())
        raise DataError(
            f"{tensor.name!r} holds NaN (in {files})",
            where=str(tensor.files()[0]),
            fix="convert an earlier checkpoint: this one was saved after the training had gone wrong",
        )


def _has_nan(dtype: str, block: NDArray[Any]) -> bool:
    """True if the block has a NaN, by its bits for types without an equivalent in numpy."""
    if dtype in ("float32", "float64"):
        numbers = block.view(f"f{ITEM_BYTES[dtype]}")
        return bool(block.size and np.isnan(numbers.min()))  # the smallest one is NaN if any of them is
    limit = {"bfloat16": 0x7F80, "float16": 0x7C00}.get(dtype)
    # An exponent of ones, and a fraction beside it: larger than infinity without the sign.
    return limit is not None and block.size > 0 and int(np.bitwise_and(block, 0x7FFF).max()) > limit
