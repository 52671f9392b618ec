"""The channel `service`: weights stay at the training service, and explorers load weights there by name.

No byte reaches a machine of rftd, so nothing can be checked or digested. The checksum is opaque: a text created anew by
a trainer for each training result, so that equal checksums mean a single execution, and a version's weights
from another generation count as different, even with equal numbers.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final, Protocol, runtime_checkable

import xxhash

from rftd.ops.errors import ConfigError
from rftd.workers.weights.channel import ChannelPlace, Exported, WeightsKind, WeightsRef
from rftd.workers.weights.checksum import NAME_PREFIX
from rftd.workers.weights.tensor_bytes import Weights

SERVICE: Final = "service"
"""The name of the channel."""


@runtime_checkable
class NamedSnapshot(Protocol):
    """Weights of one version stored by a service under a name, or in the process of being stored."""

    def name(self) -> str:
        """Waits until the service has stored the weights; returns their name, by which engines of the service load
        them.

        Raises WorkError if rejected by the service.
        """
        ...

    def checksum(self) -> str:
        """Returns the opaque checksum of the training result, equal only for one execution."""
        ...


class ServiceChannel:
    """Implements `WeightChannel` for names only: publishing and opening bytes raise ConfigError."""

    takes: Final[tuple[WeightsKind, ...]] = ("name",)
    """The channel transports names only."""

    def __init__(self, place: ChannelPlace) -> None:
        """Creates the channel, with the service of `place`, if any."""
        self._service = place.service

    def publish(self, weights: Weights, *, version: int, generation: int) -> Exported:
        """Raises ConfigError: bytes have no name at a service."""
        raise _no_bytes()

    def publish_name(self, snapshot: NamedSnapshot) -> Exported:
        """Returns the announcement of the service's weights, with the name as path and a size of 0 bytes."""
        name = snapshot.name()
        # An explorer echoes the manifest: here the digest of the name.
        manifest = xxhash.xxh3_128_hexdigest(name.encode())
        return Exported(path=name, manifest=manifest, checksum=snapshot.checksum(), size_bytes=0)

    def prepare(self) -> None:
        """Does nothing: the service needs no preparation for a publication."""

    def holds(self, weights: WeightsRef) -> bool:
        """True if the service knows the name; also for a service that does not answer, or without access to the
        service.
        """
        return self._service is None or self._service.holds_name(weights.path)

    def open(self, weights: WeightsRef) -> AbstractContextManager[Weights]:
        """Raises ConfigError: only an engine of the service can load the weights, by their name."""
        raise _no_bytes(weights.path)

    def retire(self, weights: WeightsRef) -> None:
        """Deletes the weights at the service; without access to the service, weights stay until they expire there."""
        if self._service is not None:
            self._service.forget_name(weights.path)


def _no_bytes(where: str | None = None) -> ConfigError:
    """Returns the error for weights without bytes."""
    return ConfigError(
        "these weights are at a service, which does not transfer them",
        where=where,
        field="synchronizer.sync_method",
        fix="train and generate with engines of the same service",
    )


def opaque_checksum(*parts: str) -> str:
    """Returns the opaque checksum of unreadable weights, computed from texts uniquely identifying the training."""
    digest = xxhash.xxh3_128()
    for text in parts:
        encoded = text.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return NAME_PREFIX + digest.hexdigest()
