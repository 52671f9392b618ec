"""Parked tensors: their device's memory is given up for a while, and every view of them is whole again afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch

from rftd.ops.errors import DeviceMemoryError


class ParkedTensors:
    """Copies of tensors' memory on the host, while the device's is free for somebody else.

    Names, parameters and views stay the objects that they were: a storage is emptied and filled again in place. Until
    `back` nobody may read or write them.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._copies: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        for tensor in tensors:
            # Storages, not tensors: views and tied parameters share one, and it is emptied once.
            storage = tensor.untyped_storage()
            if storage._cdata in self._copies or not storage.nbytes():
                continue
            # Pinned for a GPU: only such memory is copied at the bus's full speed.
            copy = torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=storage.device.type == "cuda")
            # Blocking: the storage is emptied on the next line but one, and a copy still under way would read freed
            # memory.
            copy.untyped_storage().copy_(storage, non_blocking=False)
            self._copies[storage._cdata] = storage, copy.untyped_storage()
            storage.resize_(0)

    @property
    def size_bytes(self) -> int:
        """The bytes of device memory that are free for others now."""
        return sum(copy.nbytes() for _, copy in self._copies.values())

    def on_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor's numbers on the host, without a copy; itself if it is not parked."""
        found = self._copies.get(tensor.untyped_storage()._cdata)
        if found is None:
            return tensor
        empty = torch.empty(0, dtype=tensor.dtype)
        return empty.set_(found[1], tensor.storage_offset(), tensor.size(), tensor.stride())

    def back(self) -> None:
        """Takes the memory back, bit for bit. What finds none stays parked, and the error of torch is raised."""
        for key, (storage, copy) in list(self._copies.items()):
            storage.resize_(copy.nbytes())
            storage.copy_(copy, non_blocking=False)
            # One by one: if the device runs out of memory in between, what is back is whole, and the rest still parked.
            del self._copies[key]


class Rest:
    """The times at which an engine's tensors lie on the host, and the memory of its device is free for others."""

    def __init__(self, device: torch.device, tensors: Callable[[], Iterable[torch.Tensor]]) -> None:
        """`tensors` gives all that the engine keeps on the device."""
        self.possible = device.type != "cpu"
        """False on a CPU: there the host's memory is the device's."""
        self._device = device
        self._tensors = tensors
        self._parked: ParkedTensors | None = None

    @property
    def begun(self) -> bool:
        """True while the tensors lie on the host."""
        return self._parked is not None

    def begin(self) -> None:
        """Parks the tensors, if there is anything to be gained. Idempotent."""
        if self.possible and self._parked is None:
            self._parked = ParkedTensors(self._tensors())
            if self._device.type == "cuda":
                # Freed memory stays in torch's cache, where no other process can have it, until this.
                torch.cuda.empty_cache()

    def end(self) -> None:
        """Takes the memory back, bit for bit. Idempotent. Raises DeviceMemoryError if others have it."""
        if self._parked is None:
            return
        try:
            self._parked.back()
        except RuntimeError as error:  # of which torch's lack of memory is one
            raise DeviceMemoryError(
                f"{self._device} has no room for {self._parked.size_bytes} bytes that rested on the host: {error}",
                fix="leave more of the device free beside explorer and trainer; the run goes on by itself",
            ) from error
        self._parked = None

    @contextmanager
    def interrupted(self) -> Iterator[None]:
        """The tensors are on the device within the block, and rest again afterwards if they did before."""
        rested = self._parked is not None
        self.end()
        try:
            yield
        finally:
            if rested:
                self.begin()

    def on_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor's numbers, wherever they are now."""
        return tensor if self._parked is None else self._parked.on_host(tensor)
