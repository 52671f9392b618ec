"""`WeightChannel`: the transport of a weight version. A built-in channel is a file and a line in `registry`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

from rftd.ops.errors import ConfigError, WorkError
from rftd.streams.events.weights import WeightsPublished
from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.weights.checksum import checksum_of
from rftd.workers.weights.manifest import Manifest
from rftd.workers.weights.tensor_bytes import Weights

if TYPE_CHECKING:
    from torch import Tensor
    from torch import device as torch_device

WeightsKind: TypeAlias = Literal["bytes", "tensors", "name"]
"""The form of weights: `bytes` of a host, `tensors` on the trainer's devices, or a `name` at a service."""
BYTES: WeightsKind = "bytes"
"""Kind of weights whose bytes a channel carries."""
NAME: WeightsKind = "name"
"""Kind of weights stored by a service under a name."""


class WeightsRef(msgspec.Struct, frozen=True, kw_only=True):
    """A published weight version, as announced by the weight channel.

    Plain data, from which any process can open and verify the weights (`registry.open_weights`). The location of each
    tensor is part of the channel's own data, identified by `manifest`.
    """

    version: int
    """Weight version."""
    generation: int
    """Generation of the training history."""
    path: str
    """The address at which the channel finds the weights."""
    manifest: str
    """The xxh3-128 (hex) of the manifest; of the name, for weights at a service."""
    checksum: str
    """Digest of the weights, in the form of the channel (`rftd.workers.weights.checksum`), by which an engine verifies
    loaded weights.
    """
    method: str = "checkpoint"
    """Name of the channel."""
    host: str = ""
    """The machine with the weights in its memory; empty if every machine that sees the path can read them."""


@runtime_checkable
class WeightService(Protocol):
    """A service storing weights under names, for the channel `service`. Both methods block; usable from any thread."""

    def holds_name(self, name: str) -> bool:
        """False if the service reports the weights as missing; True also for an unresponsive service."""
        ...

    def forget_name(self, name: str) -> None:
        """Deletes the weights at the service. Unknown names and an unresponsive service are no errors."""
        ...


class ChannelPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The experiment's folders and the publisher, for creating a channel.

    Processes that only open weights leave all fields empty, because a `WeightsRef` contains the location.
    """

    job_dir: str = ""
    """The experiment's folder, visible to every machine with one of its workers."""
    memory_dir: str = ""
    """`synchronizer.memory_dir`, the folder configured in the experiment file."""
    epoch: int = 0
    """The publisher's fencing epoch, part of every publication's name (`name_of`)."""
    service: WeightService | None = None
    """The training service used by the publisher's engine; None: no service."""


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """The location and checksums of weights published by a channel, for the announcement."""

    path: str
    """Location of the weights, in the channel's form."""
    manifest: str
    """Id of the manifest."""
    checksum: str
    """Digest over all tensors, in the form of the channel (`rftd.workers.weights.checksum`)."""
    size_bytes: int
    """Size of the published bytes."""
    host: str = ""
    """Machine with the weights; empty if every machine can read them."""


class WeightChannel(Protocol):
    """Transports weights from a trainer to explorers and evaluators. Every method blocks: not for the event loop.

    A version is visible completely or not at all, whenever processes die, and stays until retired. Each publisher uses
    distinct names, so that a replaced publisher that wakes up cannot damage its successor's publications.
    """

    # A channel of other forms than bytes declares them: `takes: Collection[WeightsKind]`, see `check_takes`.

    def publish(self, weights: Weights, *, version: int, generation: int) -> Exported:
        """Makes the weights available to explorers until retired; repeating it with equal weights returns an equal
        answer.

        Raises DiskFullError or OSError for lack of room, ConflictError if different weights have equal version and
        generation, WorkError if the channel cannot be used on this machine.
        """
        ...

    def prepare(self) -> None:
        """Prepares a fast next publication; called in idle times. Raises nothing."""
        ...

    def holds(self, weights: WeightsRef) -> bool:
        """True if the weights can still be opened from this machine, as far as known without reading them; True also
        for a shared disk, or a service, that does not answer.
        """
        ...

    def open(self, weights: WeightsRef) -> AbstractContextManager[Weights]:
        """Opens the announced weights, all verified, for the duration of the context.

        Raises WorkError for missing, damaged or different weights, WeightsElsewhereError if unavailable on this
        machine.
        """
        ...

    def retire(self, weights: WeightsRef) -> None:
        """Deletes a version and frees its space; processes that have it open are not affected. A missing version is no
        error.
        """
        ...


@runtime_checkable
class TensorChannel(Protocol):
    """A weight channel that also publishes and opens torch's tensors, on any device."""

    def publish_tensors(self, tensors: Mapping[str, Tensor], *, version: int, generation: int) -> Exported:
        """Publishes tensors, as `publish` does bytes; the tensors must not change afterwards."""
        ...

    def open_tensors(self, weights: WeightsRef, device: torch_device) -> AbstractContextManager[Mapping[str, Tensor]]:
        """Opens a version's tensors on the device, for the duration of the context, as `open` does bytes; the opener
        owns the tensors.
        """
        ...


@runtime_checkable
class TensorSnapshot(Protocol):
    """Weights of one version, available as tensors on a device."""

    def tensors(self) -> Mapping[str, Tensor]:
        """Returns the tensors by name, on the snapshot's device; they must never change."""
        ...


def name_of(version: int, generation: int, epoch: int, attempt: int = 0) -> str:
    """Returns the name of a version published under a fencing `epoch`; further attempts after a damaged one have other
    names.
    """
    # Epoch 0, of a publisher without a lease, has no suffix.
    suffix = f"-e{epoch}" if epoch else ""
    return f"v{version}-g{generation}{suffix}{f'-r{attempt}' if attempt else ''}"


def check_takes(channel: WeightChannel, kind: WeightsKind, method: str) -> None:
    """Raises ConfigError, with the supported kinds, unless the channel carries weights of the kind."""
    supported = getattr(channel, "takes", (BYTES,))
    if kind not in supported:
        raise ConfigError(
            f"the trainer engine gives weights as {_KINDS[kind]}, and the weight channel {method!r} takes them as "
            + " or ".join(_KINDS[supported_kind] for supported_kind in supported),
            field="synchronizer.sync_method",
            fix="name a channel that takes them, or another trainer.trainer_type",
        )


def as_ref(published: WeightsPublished, spec: ExperimentSpec) -> WeightsRef:
    """Returns the reference to announced weights, for a channel. Blocks.

    Raises WorkError for a location or channel outside of the experiment's, because a record may have any writer.
    """
    from rftd.storage.files.own_places import (
        check_weights,
    )  # it imports folds and numpy, which checks of a file do not need

    check_weights(spec, published)
    return WeightsRef(
        version=published.version,
        generation=published.generation,
        path=published.path,
        manifest=published.manifest,
        checksum=published.checksum,
        method=published.method,
        host=published.host,
    )


def check_announced(manifest: Manifest, weights: WeightsRef) -> None:
    """Raises WorkError unless the manifest belongs to the announced weights."""
    # First the manifest's own consistency: the lines are compared with tensors later, the checksum with the
    # announcement.
    if checksum_of(manifest.tensors) != manifest.checksum:
        raise WorkError(
            f"manifest's checksum {manifest.checksum} is not that of its lines",
            where=weights.path,
            fix=_DAMAGED_WEIGHTS_FIX,
        )
    actual = (manifest.version, manifest.generation, manifest.checksum)
    expected = (weights.version, weights.generation, weights.checksum)
    if actual != expected:
        raise WorkError(
            f"the weights are not those announced: found version, generation, checksum {actual}, expected {expected}",
            where=weights.path,
            fix=_DAMAGED_WEIGHTS_FIX,
        )


_KINDS: Mapping[WeightsKind, str] = {
    "bytes": "bytes of the host",
    "tensors": "tensors on devices",
    "name": "a name at a service",
}
"""Kinds of weights in words."""
_DAMAGED_WEIGHTS_FIX = "leave the files of the experiment alone; the next version will be whole"
"""Advice for damaged weights."""
