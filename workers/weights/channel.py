"""`WeightChannel`: how one weight version travels. A channel of ours is one file and one line in `registry`."""

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
"""What weights are: `bytes` of a host, `tensors` on the trainer's devices, or a `name` that a service knows them by."""
BYTES: WeightsKind = "bytes"
NAME: WeightsKind = "name"


class WeightsRef(msgspec.Struct, frozen=True, kw_only=True):
    """A published weight version, as the weight channel announced it.

    It is plain data, and all that any process needs to open and verify the weights: `open_weights` of `registry`.
    Where each tensor lies is part of what the channel holds, whose id is `manifest`.
    """

    version: int
    generation: int
    path: str
    """The place at which the channel finds the weights."""
    manifest: str
    """The xxh3-128 (hex) of the manifest."""
    checksum: str
    """The xxh3-128 (hex) of the weights, against which an engine verifies what it loaded."""
    method: str = "checkpoint"
    host: str = ""
    """The machine in whose memory they lie; empty if every machine that sees the path can read them."""


@runtime_checkable
class WeightService(Protocol):
    """A keeper of weights under names, asked by the channel `service`. Any thread may ask; both methods block."""

    def holds_name(self, name: str) -> bool:
        """False if the service says that it has no such weights; a service that does not answer has them still."""
        ...

    def forget_name(self, name: str) -> None:
        """Has the service forget them. What it does not know is no error, nor that it does not answer."""
        ...


class ChannelPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The place that a channel is made for: its experiment's folders, and the publisher that it serves.

    A process that only opens weights leaves all of it empty: what it opens says by itself where it lies.
    """

    job_dir: str = ""
    """The experiment's folder, which every machine with a worker of it sees."""
    memory_dir: str = ""
    """`synchronizer.memory_dir`, the folder that the experiment file asks for."""
    epoch: int = 0
    """The number of the publisher: the name of what is published has to hold it (`name_of`)."""
    service: WeightService | None = None
    """The service at which the publisher's engine trains."""


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """Weights that a channel holds for explorers."""

    path: str
    manifest: str
    checksum: str
    size_bytes: int
    host: str = ""


class WeightChannel(Protocol):
    """Carries weights from one trainer to explorers and evaluators. Every method blocks; call it off the event loop.

    A version is visible as a whole or not at all, whatever dies when, and stays until it is retired. Each publisher
    has names of its own, so that one that was replaced and wakes cannot touch what its successor published.
    """

    # A channel that carries other than bytes says so: `takes: Collection[WeightsKind]`, see `check_takes`.

    def publish(self, weights: Weights, *, version: int, generation: int) -> Exported:
        """Holds the weights for explorers from now on; repeating it with equal weights gives an equal answer.

        Raises DiskFullError or OSError if there is no room, ConflictError if others are held under the same version
        and generation, WorkError if the channel cannot be used here.
        """
        ...

    def prepare(self) -> None:
        """Does ahead what makes the next publication fast; called when nobody waits for it. Raises nothing."""
        ...

    def holds(self, weights: WeightsRef) -> bool:
        """True if they can still be opened here, as far as that can be told without reading them.

        Where nothing can be told, because the disk does not answer, it is True: they are not known to be gone.
        """
        ...

    def open(self, weights: WeightsRef) -> AbstractContextManager[Weights]:
        """The weights, all of them verified to be those announced; they must not be used after the context ended.

        Raises WorkError if they are gone, damaged or others, WeightsElsewhereError if this machine cannot have them.
        """
        ...

    def retire(self, weights: WeightsRef) -> None:
        """Forgets them; who has them open goes on safely. What is gone already is no error."""
        ...


@runtime_checkable
class TensorChannel(Protocol):
    """A weight channel that also takes and gives tensors of torch, on whatever device they are."""

    def publish_tensors(self, tensors: Mapping[str, Tensor], *, version: int, generation: int) -> Exported:
        """Publishes tensors, as `publish` does bytes; nobody changes the tensors any more."""
        ...

    def open_tensors(self, weights: WeightsRef, device: torch_device) -> AbstractContextManager[Mapping[str, Tensor]]:
        """The tensors of a version on the device, as `open` gives bytes; they belong to whoever opened them."""
        ...


@runtime_checkable
class TensorSnapshot(Protocol):
    """Weights of one version whose tensors lie on a device, and may be had there."""

    def tensors(self) -> Mapping[str, Tensor]:
        """The tensors, which nobody changes any more."""
        ...


def name_of(version: int, generation: int, epoch: int, attempt: int = 0) -> str:
    """The name that one publisher gives a version: the same each time, but for the number of another `attempt`."""
    # Epoch 0, of a publisher without a lease, has no suffix.
    suffix = f"-e{epoch}" if epoch else ""
    return f"v{version}-g{generation}{suffix}{f'-r{attempt}' if attempt else ''}"


def check_takes(channel: WeightChannel, kind: WeightsKind, method: str) -> None:
    """Returns if the channel carries weights of this kind. Raises ConfigError with those that it takes."""
    taken = getattr(channel, "takes", (BYTES,))
    if kind not in taken:
        raise ConfigError(
            f"the trainer engine gives weights as {_KINDS[kind]}, and the weight channel {method!r} takes them as "
            + " or ".join(_KINDS[each] for each in taken),
            field="synchronizer.sync_method",
            fix="name a channel that takes them, or another trainer.trainer_type",
        )


def as_ref(published: WeightsPublished, spec: ExperimentSpec) -> WeightsRef:
    """The announced weights as a channel finds them. Blocks.

    Raises WorkError for a place or a channel that is not the experiment's: a record says what its writer likes.
    """
    from rftd.storage.files.own_places import check_weights  # folds and numpy, which no check of a file needs

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
    """Returns if the manifest is that of the announced weights. Raises WorkError."""
    # First the manifest against itself: the lines are compared with tensors later, the checksum with the announcement.
    if checksum_of(manifest.tensors) != manifest.checksum:
        raise WorkError(
            f"manifest's checksum {manifest.checksum} is not that of its lines", where=weights.path, fix=_WHOLE
        )
    found = (manifest.version, manifest.generation, manifest.checksum)
    expected = (weights.version, weights.generation, weights.checksum)
    if found != expected:
        raise WorkError(
            f"the weights are not those announced: found version, generation, checksum {found}, expected {expected}",
            where=weights.path,
            fix=_WHOLE,
        )


_KINDS: Mapping[WeightsKind, str] = {
    "bytes": "bytes of the host",
    "tensors": "tensors on devices",
    "name": "a name at a service",
}
_WHOLE = "leave the files of the experiment alone; the next version will be whole"
