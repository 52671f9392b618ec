"""Parked tensors: copied to the host to free device memory for a time; all views are valid again after the return."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch

from rftd.ops.errors import DeviceMemoryError


class ParkedTensors:
    """Copies of tensors on the host, while their device memory is free for other uses.

    Names, parameters and views remain valid objects: a storage is emptied and refilled in place. They must not be read
    or written before `back`.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        """Copies the storages of `tensors` to the host, and frees their device memory."""
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
    """Moves an engine's tensors to the host and back, so that its device memory is free for others at times."""

    def __init__(self, device: torch.device, tensors: Callable[[], Iterable[torch.Tensor]]) -> None:
        """`tensors` returns all of the engine's tensors on the device."""
        self.possible = device.type != "cpu"
        """False on a CPU, where host and device share one memory."""
        self._device = device
        self._tensors = tensors
        self._parked: ParkedTensors | None = None

    @property
    def begun(self) -> bool:
        """True while the tensors are on the host and their device memory is free."""
        return self._parked is not None

    def begin(self) -> None:
        """Moves the tensors to the host; does nothing on a CPU. Idempotent."""
        if self.possible and self._parked is None:
            self._parked = ParkedTensors(self._tensors())
            if self._device.type == "cuda":
                # Freed memory stays in torch's cache, unavailable to other processes, until this call.
                torch.cuda.empty_cache()

    def end(self) -> None:
        """Moves the tensors back to the device, bit for bit. Idempotent. Raises DeviceMemoryError if there is no
        room.
        """
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
        """Has the tensors on the device for the duration of the context; afterwards on the host again, if they were
        before.
        """
        rested = self._parked is not None
        self.end()
        try:
            yield
        finally:
            if rested:
                self.begin()

    def on_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the tensor's copy on the host if parked, else the tensor itself."""
        return tensor if self._parked is None else self._parked.on_host(tensor)
