"""The `nccl` channel: a weight version stays in the trainer's memory, and is sent from there on request.

The publisher keeps the snapshot, on device or host, until retirement. A receiver requests a version, gets a separate
link (`tensor_link`), and receives the tensors into local memory: between GPUs by NCCL, else by gloo. Both sides sum the
tensors' bits on the local device, so a receiver verifies without a copy on the host. Transfers of a version retired
meanwhile finish from the publisher's memory; a dead publisher's versions are gone.
"""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import msgspec

from rftd.ops.decoding import json_decoder
from rftd.ops.errors import ConflictError, WeightsElsewhereError, WorkError
from rftd.workers.weights.channel import ChannelPlace, Exported, WeightsRef, name_of
from rftd.workers.weights.checksum import TensorDigest, digest_of
from rftd.workers.weights.manifest import WeightsLayout, manifest_id
from rftd.workers.weights.tensor_bytes import Weights

if TYPE_CHECKING:
    import torch

    from rftd.workers.weights.tensor_link import LinkServer

ADDRESS: Final = "RFTD_WEIGHTS_ADDRESS"
"""The environment variable with this machine's address at which explorers on other machines reach its trainer."""
_LOOPBACK: Final = "127.0.0.1"
"""Address reachable from this machine only."""


class HeldTensors(msgspec.Struct, frozen=True):
    """A version published by this process: the encoded layout, and the tensors by name."""

    layout: bytes
    """The `WeightsLayout`: names, dtypes, shapes, sums of bits and ties, encoded as JSON."""
    tensors: Mapping[str, torch.Tensor]
    """Tensors by name."""


class DeviceChannel:
    """Implements `WeightChannel` and `TensorChannel`. Each version stays in memory until retirement."""

    def __init__(self, address: str, epoch: int = 0) -> None:
        """`address` is this process's address for receivers; `epoch` is the publisher's fencing epoch."""
        self._address = address
        self._epoch = epoch
        self._published: dict[str, HeldTensors] = {}
        self._changing = threading.Lock()
        self._server: LinkServer | None = None

    def publish(self, weights: Weights, *, version: int, generation: int) -> Exported:
        """Copies the bytes, and serves the copy until retired. Raises ConflictError if other weights have the name."""
        from rftd.workers.weights.torch_bytes import tensors_of

        # Copied, because the caller's bytes may change; tied tensors stay tied.
        copies: dict[int, torch.Tensor] = {}
        originals = tensors_of(weights)
        for tensor in originals.values():
            copies.setdefault(id(tensor), tensor.clone())
        tensors = {name: copies[id(tensor)] for name, tensor in originals.items()}
        return self.publish_tensors(tensors, version=version, generation=generation)

    def publish_tensors(self, tensors: Mapping[str, torch.Tensor], *, version: int, generation: int) -> Exported:
        """Serves the tensors without a copy, so they must not change until retired. Raises ConflictError, WorkError."""
        from rftd.workers.weights.tensor_link import LinkServer, layout_of

        name = name_of(version, generation, self._epoch)
        layout = layout_of(tensors, version=version, generation=generation)
        encoded = msgspec.json.encode(layout)
        with self._changing:
            if self._server is None:
                self._server = LinkServer(self._address, self._tensors)
            path = f"{self._address}:{self._server.port}/{name}"
            before = self._published.get(name)
            if before is not None and before.layout != encoded:
                raise ConflictError("other weights are published under this name", where=path, fix="retire them first")
            if before is None:
                self._published[name] = HeldTensors(encoded, tensors)
                self._server.show(name, encoded)
        return Exported(
            path=path,
            manifest=manifest_id(encoded),
            checksum=layout.checksum,
            size_bytes=sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in tensors.values()}.values()),
            host=platform.node() if self._address == _LOOPBACK else "",
        )

    def prepare(self) -> None:
        """Does nothing: the trainer's own memory is sufficient for a publication."""

    def holds(self, weights: WeightsRef) -> bool:
        """True if this process, or a publisher that answers, has the version with the announced manifest."""
        published = self._own(weights)
        if published is not None:
            return manifest_id(published.layout) == weights.manifest
        from rftd.workers.weights.tensor_link import shown

        try:
            return manifest_id(shown(weights)) == weights.manifest
        except WorkError:
            return False

    @contextmanager
    def open(self, weights: WeightsRef) -> Iterator[Weights]:
        """Opens the weights as bytes of the host for the duration of the context, for engines without tensors."""
        import torch

        from rftd.workers.weights.torch_bytes import bytes_of

        with self.open_tensors(weights, torch.device("cpu")) as tensors:
            yield bytes_of(tensors)

    @contextmanager
    def open_tensors(self, weights: WeightsRef, device: torch.device) -> Iterator[Mapping[str, torch.Tensor]]:
        """Receives the weights on the device, verified there, for the duration of the context. Raises WorkError as
        `open`.
        """
        from rftd.workers.weights.tensor_link import received, shown

        try:
            encoded = shown(weights)
        except WorkError as error:
            raise _elsewhere(weights) or error from error
        layout = announced_layout(encoded, weights)
        yield received(layout, weights, device)

    def retire(self, weights: WeightsRef) -> None:
        """Withdraws a version; transfers in progress finish from their own reference."""
        with self._changing:
            if self._own(weights) is not None and self._server is not None:
                name = weights.path.rpartition("/")[2]
                self._published.pop(name)
                self._server.hide(name)

    def _own(self, weights: WeightsRef) -> HeldTensors | None:
        """Returns the version if this process publishes it, else None."""
        address, _, name = weights.path.rpartition("/")
        served = self._server is not None and address == f"{self._address}:{self._server.port}"
        return self._published.get(name) if served else None

    def _tensors(self, name: str) -> Mapping[str, torch.Tensor] | None:
        """Returns the tensors of a published version; None after its retirement."""
        published = self._published.get(name)
        return published.tensors if published is not None else None


def device_channel(place: ChannelPlace) -> DeviceChannel:
    """Returns the experiment's channel; explorers reach it over loopback, or over the address in the variable `ADDRESS`
    if set.
    """
    return DeviceChannel(os.environ.get(ADDRESS, _LOOPBACK), place.epoch)


def announced_layout(encoded: bytes, weights: WeightsRef) -> WeightsLayout:
    """Returns the layout of the announced weights. Raises WorkError for any other layout."""
    if manifest_id(encoded) != weights.manifest:
        raise WorkError(f"manifest {manifest_id(encoded)} is not {weights.manifest}", where=weights.path)
    try:
        layout = json_decoder(WeightsLayout).decode(encoded)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WorkError(f"the layout of the weights cannot be read: {error}", where=weights.path) from error
    lines = (TensorDigest(line.name, line.dtype, line.shape, bytes.fromhex(line.xxh3)) for line in layout.tensors)
    actual = (layout.version, layout.generation, digest_of("bits", lines))
    expected = (weights.version, weights.generation, weights.checksum)
    if actual != expected or layout.checksum != weights.checksum:
        raise WorkError(
            f"the weights are not those announced: found version, generation, checksum {actual}, expected {expected}",
            where=weights.path,
        )
    return layout


def _elsewhere(weights: WeightsRef) -> WeightsElsewhereError | None:
    """Returns the error for weights served only to another machine; None otherwise."""
    this_host = platform.node()
    if weights.host in ("", this_host):
        return None
    return WeightsElsewhereError(
        f"weights {weights.version} are served to workers of {weights.host} alone, this one runs on {this_host}",
        where=weights.path,
        fix=f"set {ADDRESS} of the trainer's process to its machine's address, or write synchronizer.sync_method: "
        "checkpoint",
    )
