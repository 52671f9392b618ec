"""The devices of this machine, and which engines can run on them. Nothing heavy is imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rftd.ops.health import Diagnosis
from rftd.workers.devices.engine_build import RAY, NoBuild, how_to_install, vllm_build
from rftd.workers.devices.host import Device, Host
from rftd.workers.tinker.access import KEYS

_GIB = 1024**3
TINKER: Final = "tinker"


def check_devices(host: Host) -> list[Diagnosis]:
    """One finding for each device that workers of this machine are given; and why there is no GPU, if none is."""
    found = [Diagnosis("device", "ok", _shown(device)) for device in host.devices]
    if not host.gpus:
        found.append(Diagnosis("device", "ok", host.named()))
    return found


def check_engines(host: Host) -> list[Diagnosis]:
    """One finding for each engine: that it can run here, or why not. One that is missing for a GPU is a warning."""
    where = "the GPUs, and deterministic experiments on the CPU" if host.gpus else "the CPU"
    torch = Diagnosis("engine torch", "ok", f"can generate and train on {where}")
    return [torch, _vllm(host), _verl(host), _flash_attention(host), _megatron(host)]


def check_tinker(host: Host, environ: Mapping[str, str]) -> list[Diagnosis]:
    """The findings whether the service Tinker can train and generate for workers of here; the service is not asked.

    Of a key only the variable is named.
    """
    check = "service tinker"
    version = host.packages.get(TINKER)
    variable = next((name for name in KEYS if environ.get(name, "").strip()), None)
    key = f"{variable} is set" if variable else f"neither {' nor '.join(KEYS)} is set"
    if version is None:
        needed = "not installed, and needed for model.tinker alone"
        return [Diagnosis(check, "ok", f"{needed}; {key}", how_to_install(TINKER))]
    if variable is None:
        fix = f"export {KEYS[0]} where workers run, if an experiment has model.tinker"
        return [Diagnosis(check, "ok", f"tinker {version} cannot train or generate: {key}", fix)]
    return [Diagnosis(check, "ok", f"tinker {version} can train and generate; {key}")]


def check_ray(host: Host) -> list[Diagnosis]:
    """The finding whether this daemon can place workers on a Ray cluster; no cluster is asked for."""
    check = "launcher ray"
    version = host.packages.get(RAY)
    if version is None:
        what = "not installed, and needed for rftd serve --workers ray alone"
        return [Diagnosis(check, "ok", what, how_to_install(RAY))]
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
        what = "cannot train: verl is not installed"
        return Diagnosis(check, "warn" if host.gpus else "ok", what, how_to_install("verl"))
    where = f"the ranks of {host.named()}" if host.gpus else "ranks on the CPU, where a file writes it"
    return Diagnosis(check, "ok", f"verl {version} can train on {where}")


def _flash_attention(host: Host) -> Diagnosis:
    check = "kernels flash-attn"
    version = host.packages.get("flash-attn")
    for_what = "verl's texts without padding and sequences that ranks share"
    if not host.gpus:
        had = "not installed" if version is None else f"flash-attn {version} is installed"
        return Diagnosis(check, "ok", f"{had}, and there is no GPU for it: texts are padded")
    if version is None:
        what = f"not installed, and needed for {for_what}: texts are padded"
        return Diagnosis(check, "ok", what, "pip install flash-attn, built for the torch that is installed")
    return Diagnosis(check, "ok", f"flash-attn {version} is there for {for_what}")


def _megatron(host: Host) -> Diagnosis:
    version = host.packages.get("megatron-core")
    had = "not installed" if version is None else f"megatron-core {version} is installed"
    what = (
        f"{had}, and not used: this release trains with verl's FSDP2, and reads Megatron's checkpoints (rftd convert)"
    )
    return Diagnosis("strategy megatron", "ok", what)
