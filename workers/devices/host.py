"""`Host`: what a launcher can give to the workers that it starts. A value, which `discovery` finds."""

from __future__ import annotations

from collections import Counter
from typing import Final, Literal

import msgspec


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A device of a host that engines compute on."""

    kind: Literal["cpu", "cuda"]
    index: int
    """Its number on the host, in the order of the PCI bus; 0 for the CPU."""
    name: str
    uuid: str = ""
    memory_bytes: int
    """All of its memory; 0 where the driver does not say."""
    node: str = ""
    """The address of its machine in a cluster; empty where there is one machine."""
    visible: str = ""
    """The text that stands for it in CUDA_VISIBLE_DEVICES; empty for the CPU."""


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """A machine, or a cluster: its devices, and the engine packages that are installed for its workers."""

    name: str = ""
    seen: bool = True
    """False if nobody has looked: workers run on machines that whoever asks does not see."""
    devices: tuple[Device, ...] = ()
    clustered: bool = False
    """True if it is a cluster of machines, on which a launcher finds room for each worker."""
    no_gpu: str = ""
    """The reason why there is no GPU among the devices; empty if there is one."""
    packages: dict[str, str] = {}
    """Versions of the engine packages that are installed, by the name of the distribution."""

    trainers: Host | None = None
    """The host of trainers, where another launcher starts them; None: they are on this one, with the explorers."""

    @property
    def for_trainers(self) -> Host:
        """The host on which trainers run."""
        return self if self.trainers is None else self.trainers

    @property
    def is_one_machine(self) -> bool:
        """False if explorers and trainer may be on several machines, as far as anybody has looked."""
        return self.trainers is None and len({device.node for device in self.devices}) <= 1

    @property
    def gpus(self) -> tuple[Device, ...]:
        """The GPUs that workers may use."""
        return tuple(device for device in self.devices if device.kind == "cuda")

    @property
    def most_gpus(self) -> int:
        """The GPUs of the machine that has most of them."""
        return max(Counter(gpu.node for gpu in self.gpus).values(), default=0)

    def named(self) -> str:
        """The GPUs in words: `2 GPUs (NVIDIA H100 0, 1)`, or why there is none."""
        if not self.gpus:
            return f"no GPU ({self.no_gpu})" if self.no_gpu else "no GPU"
        kinds: dict[str, list[str]] = {}
        for gpu in self.gpus:
            kinds.setdefault(gpu.name, []).append(str(gpu.index))
        listed = "; ".join(f"{name} {', '.join(indices)}" for name, indices in kinds.items())
        return f"{len(self.gpus)} GPU{'s' if len(self.gpus) > 1 else ''} ({listed})"


ANY_HOST: Final = Host(seen=False)
"""A machine that nobody has looked at: what a file writes is believed, and the rest is chosen to run anywhere."""
