"""The channel `service`: weights stay at the service that trains them, and explorers load them there by their name.

No byte of them comes to any machine of ours, so nothing can be read through or digested. Their checksum is opaque: a
text that a trainer makes anew for whatever it has trained, so that equal checksums are of one execution (rule 8), and
weights of the same version that another generation made are others, whatever numbers they hold.
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
    """Weights of one version that a service holds, or is about to hold, under a name."""

    def name(self) -> str:
        """The name under which an engine of the same service loads them; waits until they can be loaded.

        Raises WorkError if the service did not take them.
        """
        ...

    def checksum(self) -> str:
        """The opaque checksum of what was trained."""
        ...


class ServiceChannel:
    """Implements `WeightChannel` for names alone."""

    takes: Final[tuple[WeightsKind, ...]] = ("name",)

    def __init__(self, place: ChannelPlace) -> None:
        self._service = place.service

    def publish(self, weights: Weights, *, version: int, generation: int) -> Exported:
        """Raises ConfigError: bytes have no name at a service."""
        raise _no_bytes()

    def publish_name(self, snapshot: NamedSnapshot) -> Exported:
        """The announcement of what the service holds."""
        name = snapshot.name()
        # An explorer echoes the manifest: of a name it is the name's own digest.
        manifest = xxhash.xxh3_128_hexdigest(name.encode())
        return Exported(path=name, manifest=manifest, checksum=snapshot.checksum(), size_bytes=0)

    def prepare(self) -> None:
        """Does nothing: the service prepares itself."""

    def holds(self, weights: WeightsRef) -> bool:
        """True if the service knows the name; also if it does not answer, or nobody here can ask it."""
        return self._service is None or self._service.holds_name(weights.path)

    def open(self, weights: WeightsRef) -> AbstractContextManager[Weights]:
        """Raises ConfigError: only an engine of the service has them, by their name."""
        raise _no_bytes(weights.path)

    def retire(self, weights: WeightsRef) -> None:
        """Has the service forget them; without one that can be asked here they stay until their time there is over."""
        if self._service is not None:
            self._service.forget_name(weights.path)


def _no_bytes(where: str | None = None) -> ConfigError:
    return ConfigError(
        "these weights lie at a service, and no bytes of them come here",
        where=where,
        field="synchronizer.sync_method",
        fix="train and generate with engines of the same service",
    )


def opaque_checksum(*parts: str) -> str:
    """The opaque checksum of weights that nobody here can read, made of what tells their training from any other."""
    digest = xxhash.xxh3_128()
    for part in parts:
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return NAME_PREFIX + digest.hexdigest()
