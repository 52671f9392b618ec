"""The devices of this machine, and which engines can run on them. Nothing heavy is imported."""

from __future__ import annotations

from importlib import metadata

from rftd.ops.health import Diagnosis
from rftd.workers.devices.engine_build import NoBuild, vllm_build
from rftd.workers.devices.host import Device, Host

_GIB = 1024**3


def check_devices(host: Host) -> list[Diagnosis]:
    """One finding for each device that workers of this machine are given; and why there is no GPU, if none is."""
    found = [Diagnosis("device", "ok", _shown(device)) for device in host.devices]
    if not host.gpus:
        found.append(Diagnosis("device", "ok", host.named()))
    return found


def check_engines(host: Host) -> list[Diagnosis]:
    """One finding for each engine: that it can run here, or why not. One that is missing for a GPU is a warning."""
    where = "the GPUs, and deterministic experiments on the CPU" if host.gpus else "the CPU"
    return [Diagnosis("engine torch", "ok", f"can generate and train on {where}"), _vllm(host), _verl(host)]


def check_ray() -> list[Diagnosis]:
    """The finding whether this daemon can place workers on a Ray cluster; no cluster is asked for."""
    check = "launcher ray"
    try:
        version = metadata.version("ray")
    except metadata.PackageNotFoundError:
        return [Diagnosis(check, "ok", "not installed, and needed for rftd serve --workers ray alone: rftd[ray]")]
    return [Diagnosis(check, "ok", f"ray {version} can place workers: rftd serve --workers ray")]


def _shown(device: Device) -> str:
    size = f", {device.memory_bytes / _GIB:.1f} GiB" if device.memory_bytes else ""
    return f"{device.kind} {device.index}: {device.name}{size}"


def _vllm(host: Host) -> Diagnosis:
    check = "engine vllm"
    build = vllm_build(host)
    if isinstance(build, NoBuild):
        # Without a GPU the torch engine is the faster one, so there is nothing to repair.
        return Diagnosis(check, "warn" if host.gpus else "ok", f"cannot generate: {build.why}", build.fix)
    where = "the GPUs" if build.device == "cuda" else "the CPU"
    return Diagnosis(check, "ok", f"{build.package} {build.version} can generate on {where}")


def _verl(host: Host) -> Diagnosis:
    check = "engine verl"
    version = host.packages.get("verl")
    if version is None:
        fix = "pip install 'rftd[verl]', or `make engines-cpu` for a lock with the CPU build of vLLM"
        return Diagnosis(check, "warn" if host.gpus else "ok", "cannot train: verl is not installed", fix)
    where = f"the ranks of {host.named()}" if host.gpus else "ranks on the CPU, where a file writes it"
    return Diagnosis(check, "ok", f"verl {version} can train on {where}")
