"""`Host`: the devices and packages a launcher can offer to its workers. A value, made by `discovery`."""

from __future__ import annotations

from collections import Counter
from typing import Final, Literal

import msgspec


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A device of a host, for the computations of engines."""

    kind: Literal["cpu", "cuda"]
    """Type of the device."""
    index: int
    """Number on the host, in the order of the PCI bus; 0 for the CPU."""
    name: str
    """Description, such as the model of a GPU."""
    uuid: str = ""
    """Id of the GPU; empty for the CPU."""
    memory_bytes: int
    """Total memory; 0 if the driver does not tell."""
    node: str = ""
    """Address of the machine in a cluster; empty for a single machine."""
    visible: str = ""
    """Name of the device in CUDA_VISIBLE_DEVICES; empty for the CPU."""


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """A machine, or a cluster: its devices, and the engine packages installed for its workers."""

    name: str = ""
    """Name of the machine or cluster."""
    seen: bool = True
    """False without a discovery: workers run on machines invisible to this process."""
    devices: tuple[Device, ...] = ()
    """The devices, of all machines."""
    clustered: bool = False
    """True for a cluster of machines, with a launcher placing each worker."""
    no_gpu: str = ""
    """Reason why there is no GPU among the devices; empty if there is one."""
    packages: dict[str, str] = {}
    """Versions of the installed engine packages, by the name of the distribution."""

    trainers: Host | None = None
    """Host of trainers, if another launcher starts them; None: they run on this one, with the explorers."""

    @property
    def for_trainers(self) -> Host:
        """Returns the host of the trainers."""
        return self if self.trainers is None else self.trainers

    @property
    def is_one_machine(self) -> bool:
        """False if explorers and trainer may be on several machines, as far as known."""
        return self.trainers is None and len({device.node for device in self.devices}) <= 1

    @property
    def gpus(self) -> tuple[Device, ...]:
        """Returns the GPUs available to workers."""
        return tuple(device for device in self.devices if device.kind == "cuda")

    @property
    def most_gpus(self) -> int:
        """Returns the number of GPUs of the machine with the most."""
        return max(Counter(gpu.node for gpu in self.gpus).values(), default=0)

    def named(self) -> str:
        """Returns the GPUs in words: `2 GPUs (NVIDIA H100 0, 1)`, or the reason for none."""
        if not self.gpus:
            return f"no GPU ({self.no_gpu})" if self.no_gpu else "no GPU"
        kinds: dict[str, list[str]] = {}
        for gpu in self.gpus:
            kinds.setdefault(gpu.name, []).append(str(gpu.index))
        listed = "; ".join(f"{name} {', '.join(indices)}" for name, indices in kinds.items())
        return f"{len(self.gpus)} GPU{'s' if len(self.gpus) > 1 else ''} ({listed})"


ANY_HOST: Final = Host(seen=False)
"""An undiscovered machine: settings of a file are believed, and the others are chosen to run anywhere."""
