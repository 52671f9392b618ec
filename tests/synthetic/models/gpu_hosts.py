"""Machines with GPUs, as a file is held against them."""

from __future__ import annotations

from rftd.workers.devices.host import Device, Host


def gpus(count: int, **packages: str) -> Host:
    """A machine with so many GPUs, and these packages."""
    found = tuple(
        Device(kind="cuda", index=index, name="NVIDIA H100", memory_bytes=80 * 1024**3, visible=str(index))
        for index in range(count)
    )
    return Host(devices=found, packages=packages)


def served(count: int) -> Host:
    """A machine with so many GPUs and the CUDA build of vLLM."""
    return gpus(count, vllm="0.31.0")
