"""Parked tensors: moved to the host for a while to free device memory; every view is valid again later."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch

from rftd.ops.errors import DeviceMemoryError


class ParkedTensors:
    """Host copies of tensors' memory, while the device's memory is free for other uses.

    Names, parameters and views remain valid objects: a storage is emptied and refilled in place. No reading or writing
    is allowed until `back`.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._copies: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        for tensor in tensors:
            # Storages, not tensors: views and tied parameters share a storage, emptied once.
            storage = tensor.untyped_storage()
            if storage._cdata in self._copies or not storage.nbytes():
                continue
            # Pinned for a GPU: only pinned memory is copied at the bus's full speed.
            copy = torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=storage.device.type == "cuda")
            # Blocking: the storage is emptied right afterwards, and a copy still in progress would read freed memory.
            copy.untyped_storage().copy_(storage, non_blocking=False)
            self._copies[storage._cdata] = storage, copy.untyped_storage()
            storage.resize_(0)

    @property
    def size_bytes(self) -> int:
        """The device memory freed for other uses, in bytes."""
        return sum(copy.nbytes() for _, copy in self._copies.values())

    def on_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the tensor's numbers on the host, without a copy; the original tensor if not parked."""
        storages = self._copies.get(tensor.untyped_storage()._cdata)
        if storages is None:
            return tensor
        empty = torch.empty(0, dtype=tensor.dtype)
        return empty.set_(storages[1], tensor.storage_offset(), tensor.size(), tensor.stride())

    def back(self) -> None:
        """Moves the tensors back, bit for bit. Without enough memory the remaining tensors stay parked, and torch's
        error is raised.
        """
        for key, (storage, copy) in list(self._copies.items()):
            storage.resize_(copy.nbytes())
            storage.copy_(copy, non_blocking=False)
            # One by one: if the device runs out of memory in between, restored ones are whole, and the others still
            # parked.
            del self._copies[key]


class Rest:
    """Periods in which an engine's tensors lie on the host, and the device memory is free for others."""

    def __init__(self, device: torch.device, tensors: Callable[[], Iterable[torch.Tensor]]) -> None:
        """`tensors` returns all of the engine's tensors on the device."""
        self.possible = device.type != "cpu"
        """False on a CPU, where the host's memory is the device's."""
        self._device = device
        self._tensors = tensors
        self._parked: ParkedTensors | None = None

    @property
    def begun(self) -> bool:
        """True while the tensors lie on the host and the device memory is free."""
        return self._parked is not None

    def begin(self) -> None:
        """Parks the tensors, unless no memory would be freed. Idempotent."""
        if self.possible and self._parked is None:
            self._parked = ParkedTensors(self._tensors())
            if self._device.type == "cuda":
                # Freed memory stays in torch's cache, unavailable to other processes, until this call.
                torch.cuda.empty_cache()

    def end(self) -> None:
        """Moves the tensors back, bit for bit. Idempotent. Raises DeviceMemoryError for lack of room on the device."""
        if self._parked is None:
            return
        try:
            self._parked.back()
        except RuntimeError as error:  # torch's out-of-memory error is one
            raise DeviceMemoryError(
                f"{self._device} has no room for {self._parked.size_bytes} bytes that rested on the host: {error}",
                fix="leave more of the device free beside explorer and trainer; the run continues by itself",
            ) from error
        self._parked = None

    @contextmanager
    def interrupted(self) -> Iterator[None]:
        """Context with the tensors on the device; parked again afterwards if parked before."""
        rested = self._parked is not None
        self.end()
        try:
            yield
        finally:
            if rested:
                self.begin()

    def on_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the tensor's numbers on the host if parked, else the tensor itself."""
        return tensor if self._parked is None else self._parked.on_host(tensor)
