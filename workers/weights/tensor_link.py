"""Links between two processes for tensors: a rendezvous at the publisher, and a process group of two per transfer.

A receiver pushes a request into a queue of the publisher's store (torch's TCPStore), and both join a process group of
two under a unique name. Each transfer has a separate thread and group, so a dead or hanging receiver ends only a single
transfer. Nothing is pickled: requests are JSON, tensors are raw bytes.
"""

from __future__ import annotations

import atexit
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Final

import msgspec
import torch
import torch.distributed

from rftd.ops import limits
from rftd.ops.decoding import json_decoder
from rftd.ops.errors import ConfigError, WorkError
from rftd.ops.outbound import host_and_port
from rftd.workers.weights.bit_sums import BitSums
from rftd.workers.weights.channel import WeightsRef
from rftd.workers.weights.checksum import digest_of
from rftd.workers.weights.manifest import TensorSum, WeightsLayout

_DIST: Final[Any] = torch.distributed
"""torch.distributed, untyped: torch provides no types for its stores and groups."""
_ASKS: Final = "asks"
"""The store's queue of receivers' requests."""
_LINKS: Final = "links"
"""The store's counter, for unique names of links."""
_SHOWN: Final = "shown/"
"""Beginning of the store's keys for layouts of available versions."""
_ANSWER: Final = "answer"
"""A link's key for the publisher's answer to the request."""
_COMES: Final = "comes"
"""The answer that the tensors follow."""
_CONNECT: Final = timedelta(seconds=5)
"""Time limit for reaching the publisher."""
_OPERATION: Final = timedelta(seconds=limits.WEIGHTS_TRANSFER_S)
"""Time limit for one operation of a store or a process group."""
_IDLE: Final = timedelta(days=1)
"""Maximum wait of a publisher for one request; a publisher that ends sends itself a request to stop."""
_UNREACHABLE: Final = "the weights are gone, for their publisher does not answer; the trainer publishes them again"
"""Text of the error if the publisher does not answer."""
_PART_BYTES: Final = 1 << 28
"""A tensor is sent in parts of this size: gloo counts in 32 bits."""


class WeightsAsk(msgspec.Struct, frozen=True):
    """A receiver's request, sent as JSON through the publisher's queue."""

    name: str
    """The requested version; empty: the server must stop."""
    link: str
    """Name of the link, unique at the publisher; empty in the request to stop."""
    backend: str
    """torch's backend for the transfer: `nccl` between GPUs, else `gloo`."""


class LinkServer:
    """The publisher's side of transfers: lists available versions, and serves each request on a separate thread."""

    def __init__(self, address: str, tensors: Callable[[str], Mapping[str, torch.Tensor] | None]) -> None:
        """Listens at the address, on a port chosen by the system. Raises WorkError on failure."""
        try:
            listener = socket.create_server((address, 0))
        except OSError as error:
            raise WorkError(f"weights cannot be served at {address}: {error.strerror}", where=address) from error
        self.port: int = listener.getsockname()[1]
        self._address = address
        self._tensors = tensors
        # By descriptor, because a store's own listener would use every address of the machine.
        self._store = _DIST.TCPStore(
            address,
            self.port,
            is_master=True,
            wait_for_workers=False,
            timeout=_OPERATION,
            master_listen_fd=listener.detach(),
        )
        self._thread = threading.Thread(target=self._serve, name="serve-weights", daemon=True)
        self._thread.start()
        # A thread held by torch while the interpreter ends would crash the process.
        atexit.register(self._stop)

    def show(self, name: str, layout: bytes) -> None:
        """Makes the version available for requests, with the layout as description for receivers."""
        self._store.set(_SHOWN + name, layout)

    def hide(self, name: str) -> None:
        """Withdraws the version from requests; transfers in progress are not affected."""
        self._store.delete_key(_SHOWN + name)

    def _serve(self) -> None:
        # A separate client: a store answers a single call at a time, and would be blocked by waiting on the queue.
        """Serves requests until told to stop; the body of the server's thread."""
        asks = _connected(self._address, self.port)
        asks.set_timeout(_IDLE)
        while True:
            try:
                encoded = asks.queue_pop(_ASKS)
            except _DIST.DistStoreError:
                continue  # no request yet
            except RuntimeError:
                return  # the store is gone
            with suppress(msgspec.DecodeError):
                ask = json_decoder(WeightsAsk).decode(encoded)
                if not ask.name:
                    return
                threading.Thread(target=self._send, args=(ask,), name="send-weights", daemon=True).start()

    def _send(self, ask: WeightsAsk) -> None:
        """Sends a version's tensors to one receiver."""
        tensors = self._tensors(ask.name)
        # A dead receiver ends only a single transfer; a successor asks again.
        with suppress(RuntimeError):
            store = _DIST.PrefixStore(ask.link, _connected(self._address, self.port))
            store.set(_ANSWER, "retired" if tensors is None else _COMES)
            if tensors is None:
                return
            group = _group(ask.backend, store, rank=0, address=self._address)
            for tensor in _each_once(tensors):
                for chunk in _parts(tensor if ask.backend == "nccl" else tensor.cpu()):
                    group.send([chunk], 1, 0).wait()
            # The receiver confirms completion: closing the connection earlier may lose data in transit.
            group.recv([torch.zeros(1, dtype=torch.uint8, device=_device_of(ask.backend))], 1, 1).wait()
            if ask.backend == "nccl":
                torch.cuda.synchronize()  # `wait` blocks the stream, not this thread

    def _stop(self) -> None:
        """Ends the thread that serves requests, by an empty request."""
        with suppress(RuntimeError):
            _connected(self._address, self.port).queue_push(_ASKS, msgspec.json.encode(WeightsAsk("", "", "")))
        self._thread.join(_OPERATION.total_seconds())


def layout_of(tensors: Mapping[str, torch.Tensor], *, version: int, generation: int) -> WeightsLayout:
    """Returns the layout of tensors, with sums of bits computed on their device, and indices of tied tensors."""
    names = sorted(tensors)
    devices = {tensor.device for tensor in tensors.values()}
    device = devices.pop() if len(devices) == 1 else torch.device("cpu")
    digests = BitSums(device).digests({name: tensors[name] for name in names})
    first: dict[int, int] = {}
    shares = tuple(first.setdefault(id(tensors[name]), number) for number, name in enumerate(names))
    return WeightsLayout(
        version=version,
        generation=generation,
        checksum=digest_of("bits", digests),
        device=device.type,
        tensors=tuple(TensorSum(digest.name, digest.dtype, digest.shape, digest.digest.hex()) for digest in digests),
        shares=shares,
    )


def shown(weights: WeightsRef) -> bytes:
    """Returns the encoded layout of a version from its publisher. Raises WorkError if the version was retired, or the
    publisher has ended.
    """
    store, name, _ = _publisher(weights)
    with _as_work_error(weights):
        if not store.check([_SHOWN + name]):
            raise WorkError("the weights were retired", where=weights.path)
        return bytes(store.get(_SHOWN + name))


def received(layout: WeightsLayout, weights: WeightsRef, device: torch.device) -> dict[str, torch.Tensor]:
    """Receives a version's tensors on the device, each verified. Raises WorkError if the publisher ends meanwhile, or
    if a tensor is damaged.
    """
    store, name, address = _publisher(weights)
    backend = "nccl" if device.type == layout.device == "cuda" else "gloo"
    ask = WeightsAsk(name, f"link/{store.add(_LINKS, 1)}", backend)
    target = device if backend == "nccl" else torch.device("cpu")
    arrived: dict[str, torch.Tensor] = {}
    with _as_work_error(weights):
        store.queue_push(_ASKS, msgspec.json.encode(ask))
        link = _DIST.PrefixStore(ask.link, store)
        if link.get(_ANSWER) != _COMES.encode():
            raise WorkError("the weights were retired", where=weights.path)
        group = _group(backend, link, rank=1, address=address)
        for number, line in enumerate(layout.tensors):
            shared = layout.shares[number]
            if shared != number:
                arrived[line.name] = arrived[layout.tensors[shared].name]
                continue
            tensor = torch.empty(line.shape, dtype=getattr(torch, line.dtype), device=target)
            for chunk in _parts(tensor):
                group.recv([chunk], 0, 0).wait()
            arrived[line.name] = tensor
        group.send([torch.ones(1, dtype=torch.uint8, device=_device_of(backend))], 0, 1).wait()
    for line, digest in zip(layout.tensors, BitSums(target).digests(arrived), strict=True):
        if digest.digest.hex() != line.xxh3:
            raise WorkError(f"tensor {line.name!r} is damaged: expected sums {line.xxh3}", where=weights.path)
    moved = {id(tensor): tensor.to(device) for tensor in arrived.values()}
    return {name: moved[id(tensor)] for name, tensor in arrived.items()}


@contextmanager
def _as_work_error(weights: WeightsRef) -> Iterator[None]:
    """Converts torch's errors within the block: the publisher, or the connection to it, has ended."""
    try:
        yield
    except RuntimeError as error:
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise WorkError(f"{_UNREACHABLE} ({first_line})", where=weights.path) from error


def _publisher(weights: WeightsRef) -> tuple[Any, str, str]:
    """Returns the publisher's store, the name of the weights there, and the local address towards it."""
    publisher_address, _, name = weights.path.rpartition("/")
    try:
        host, port = host_and_port(publisher_address, field="weights")
    except ConfigError as error:
        raise WorkError("this is not the address of a publisher of weights", where=weights.path) from error
    try:
        # First by a plain socket: a store would retry until a time-out even if nobody listens.
        with socket.create_connection((host, port), _CONNECT.total_seconds()) as tried:
            address = tried.getsockname()[0]
        return _connected(host, port), name, address
    except (OSError, RuntimeError) as error:
        raise WorkError(_UNREACHABLE, where=weights.path) from error


def _connected(host: str, port: int) -> Any:
    """Returns a client of a publisher's store."""
    return _DIST.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=_OPERATION)


def _group(backend: str, store: Any, *, rank: int, address: str) -> Any:
    """Returns a process group of two, which ends with its last reference. The branch `nccl` has not been run between
    two GPUs (docs/benchmarks.md).
    """
    if backend == "nccl":
        options = _DIST.ProcessGroupNCCL.Options()
        options._timeout = _OPERATION
        return _DIST.ProcessGroupNCCL(store, rank, 2, options)
    options = _DIST.ProcessGroupGloo._Options()
    # By address: gloo would otherwise listen at the address of the machine's name.
    options._devices = [_DIST.ProcessGroupGloo.create_device(hostname=address)]
    options._timeout = _OPERATION
    return _DIST.ProcessGroupGloo(store, rank, 2, options)


def _device_of(backend: str) -> torch.device:
    """Returns the device whose tensors a backend transfers."""
    return torch.device("cuda" if backend == "nccl" else "cpu")


def _each_once(tensors: Mapping[str, torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yields the tensors in the order of the layout, tied ones once."""
    sent = set[int]()
    for name in sorted(tensors):
        if id(tensors[name]) not in sent:
            sent.add(id(tensors[name]))
            yield tensors[name]


def _parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yields the tensor's bytes in C order, in parts small enough for a send; nothing for an empty tensor."""
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.numel():
        words = flat.view(torch.uint8)
        yield from (words[begin : begin + _PART_BYTES] for begin in range(0, len(words), _PART_BYTES))
