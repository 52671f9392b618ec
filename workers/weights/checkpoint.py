"""The `checkpoint` channel: a weight version is a folder of model.safetensors and manifest.json, never half written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import msgspec

from rftd.ops.decoding import json_decoder
from rftd.ops.durable import make_durable_folder, sync_folder
from rftd.ops.errors import ConflictError, WorkError
from rftd.workers.weights import safetensors
from rftd.workers.weights.channel import ChannelPlace, Exported, WeightsRef, check_announced, name_of
from rftd.workers.weights.checksum import checksum_of, tensor_sums
from rftd.workers.weights.manifest import Manifest, TensorSum, manifest_id
from rftd.workers.weights.tensor_bytes import TensorBytes, Weights, each_once

TENSORS = "model.safetensors"
"""File of the tensors."""
MANIFEST = "manifest.json"
"""File of the manifest."""


class CheckpointChannel:
    """Implements `WeightChannel`: every machine with the folder can read the weights, even after a power cut."""

    def __init__(self, folder: Path, epoch: int = 0) -> None:
        """`folder` has a folder for each version and publisher; `epoch` is the publisher's fencing epoch."""
        self._folder = folder
        self._epoch = epoch

    def publish(self, weights: Weights, *, version: int, generation: int) -> Exported:
        """Writes the version durably, under another name if a damaged folder has the first name."""
        candidates = (self._folder / name_of(version, generation, self._epoch, attempt) for attempt in count())
        folder = next(candidate for candidate in candidates if not _damaged(candidate))
        return export(weights, folder, version=version, generation=generation)

    def prepare(self) -> None:
        """Does nothing: a file cannot be written ahead of the weights."""

    def holds(self, weights: WeightsRef) -> bool:
        """True if the folder has the announced manifest and a file of tensors; True also if the disk does not
        answer.
        """
        folder = Path(weights.path)
        try:
            (folder / TENSORS).stat()
            return manifest_id((folder / MANIFEST).read_bytes()) == weights.manifest
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            # An unresponsive disk says nothing about the files: the weights are not known to be gone.
            return True

    @contextmanager
    def open(self, weights: WeightsRef) -> Iterator[Weights]:
        """Maps and verifies the tensors for the duration of the context; removing the file meanwhile is harmless.
        Raises WorkError.
        """
        manifest, tensors = read(Path(weights.path), expect=weights.manifest)
        check_announced(manifest, weights)
        yield tensors

    def retire(self, weights: WeightsRef) -> None:
        """Removes the folder; it is renamed first, so that no reader finds a part of it."""
        folder = Path(weights.path)
        # Renamed first: removing a folder takes time, and an explorer opening it meanwhile would find half a version.
        renamed = folder.with_name(f".{folder.name}.gone")
        with suppress(OSError):
            folder.rename(renamed)
        # Both: an earlier removal may have died after the rename, and a rename may fail where the name exists.
        for leftover in (renamed, folder):
            shutil.rmtree(leftover, ignore_errors=True)


def checkpoint_channel(place: ChannelPlace) -> CheckpointChannel:
    """Returns the experiment's channel, with versions in the folder `weights` of the job's folder."""
    return CheckpointChannel(Path(place.job_dir) / "weights", place.epoch)


def _damaged(folder: Path) -> bool:
    """True if the folder exists and is not whole."""
    if not folder.exists():
        return False
    try:
        read(folder)
    except WorkError:
        return True
    return False


def export(weights: Weights, folder: Path, *, version: int, generation: int) -> Exported:
    """Writes the weights into `folder`, durably; the folder appears only when complete.

    Repetition with equal weights changes nothing. Raises ConflictError if the folder has other weights.
    """
    sums = tensor_sums(weights)
    manifest = Manifest(version=version, generation=generation, checksum=checksum_of(sums), tensors=sums)
    # The id is computed from these very bytes: another indentation would be another manifest.
    encoded = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    if folder.exists():
        _refuse_other(folder, encoded)
        # The rename of another process is visible before being durable; an announcement must not precede durability.
        sync_folder(folder.parent)  # the process that wrote it may have died before
    else:
        _write(weights, encoded, folder)
    return Exported(
        path=str(folder),
        manifest=manifest_id(encoded),
        checksum=manifest.checksum,
        size_bytes=(folder / TENSORS).stat().st_size,
    )


def read(folder: Path, *, expect: str | None = None) -> tuple[Manifest, dict[str, TensorBytes]]:
    """Reads the weights in `folder`, each tensor verified against the manifest; with `expect`, the manifest must have
    this id.

    Tied tensors share one object. Raises WorkError for missing, damaged or unnamed tensors.
    """
    manifest = read_manifest(folder, expect=expect)
    stored = safetensors.read(folder / TENSORS)
    sums = {line.name: line for line in tensor_sums(stored)}
    # Unnamed tensors are refused as well: an engine would load extra tensors over existing ones, unverified.
    unknown = stored.keys() - {line.name for line in manifest.tensors}
    if unknown:
        raise WorkError(f"weights hold {sorted(unknown)[0]!r}, which the manifest does not name", where=str(folder))
    # Names sharing memory are stored once; the sum identifies the stored name.
    by_content = {_content(line): stored[line.name] for line in sums.values()}
    tensors = {}
    for line in manifest.tensors:
        if line.name in sums and sums[line.name] != line:
            raise WorkError(f"tensor {line.name!r} is damaged: expected xxh3 {line.xxh3}", where=str(folder / TENSORS))
        tensor = stored.get(line.name, by_content.get(_content(line)))
        if tensor is None:
            raise WorkError(f"tensor {line.name!r} is missing", where=str(folder / TENSORS))
        tensors[line.name] = tensor
    if checksum_of(manifest.tensors) != manifest.checksum:
        raise WorkError(f"manifest's checksum {manifest.checksum} is not that of its lines", where=str(folder))
    return manifest, tensors


def read_manifest(folder: Path, *, expect: str | None = None) -> Manifest:
    """Returns the manifest in `folder`. Raises WorkError for a missing manifest, or for an id other than `expect`."""
    try:
        encoded = (folder / MANIFEST).read_bytes()
        manifest = json_decoder(Manifest).decode(encoded)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WorkError(f"no manifest of weights: {error}", where=str(folder / MANIFEST)) from error
    if expect not in (None, manifest_id(encoded)):
        raise WorkError(f"manifest {manifest_id(encoded)} is not {expect}", where=str(folder / MANIFEST))
    return manifest


def _content(line: TensorSum) -> tuple[str, tuple[int, ...], str]:
    """Returns the part of a line that tied tensors share."""
    return line.dtype, line.shape, line.xxh3


def _refuse_other(folder: Path, encoded: bytes) -> None:
    """Raises ConflictError if the folder holds other weights."""
    try:
        present = (folder / MANIFEST).read_bytes()
    except OSError:
        present = b""
    if present != encoded:
        raise ConflictError(
            "the folder already holds other weights", where=str(folder), fix="export into a separate folder"
        )


def _write(weights: Weights, encoded: bytes, folder: Path) -> None:
    """Writes tensors and manifest beside the folder, syncs, and renames."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    make_durable_folder(folder.parent)
    partial.mkdir()
    safetensors.write(each_once(weights), partial / TENSORS)
    (partial / MANIFEST).write_bytes(encoded)
    # Content, then the folder with the names, then the rename: after a power cut the name means whole files or nothing.
    for path in (partial / TENSORS, partial / MANIFEST, partial):
        _sync(path)
    try:
        os.rename(partial, folder)
    except OSError:
        if not folder.is_dir():
            raise
        # A replaced writer, awake again, was first: the base weights have a single name for all generations.
        _refuse_other(folder, encoded)
        shutil.rmtree(partial, ignore_errors=True)
    sync_folder(folder.parent)


def _sync(path: Path) -> None:
    """Makes a file or folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
