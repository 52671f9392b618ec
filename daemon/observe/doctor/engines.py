"""The devices of this machine, and which engines can run on them. Nothing heavy is imported.

Only beside a GPU is torch asked, in a process of its own, whether it sees it: a driver may list what torch cannot use.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple
from urllib.parse import urlsplit

from rftd.daemon.http.client.address import somebody_listens
from rftd.ops.extras import PACKAGES, TORCH
from rftd.ops.health import Diagnosis
from rftd.workers.devices.engine_build import CUDA_ENVIRONMENT, RAY, NoBuild, how_to_install, vllm_build
from rftd.workers.devices.host import Device, Host
from rftd.workers.engines.tinker.access import KEYS
from rftd.workers.hosts.ray.open_cluster import open_defaults

_GIB = 1024**3
TINKER: Final = "tinker"
_ASK_TORCH: Final = (
    "import json, torch; n = torch.cuda.device_count() if torch.cuda.is_available() else 0; "
    "print(json.dumps({'count': n, 'torch': torch.__version__, 'cuda': torch.version.cuda}))"
)
_ASK_TIMEOUT_S: Final = 120.0
_RAY_TIMEOUT_S: Final = 5.0


def check_devices(host: Host) -> list[Diagnosis]:
    """One finding for each device that workers of this machine are given; and why there is no GPU, if none is."""
    found = [Diagnosis("device", "ok", _shown(device)) for device in host.devices]
    if not host.gpus:
        found.append(Diagnosis("device", "ok", host.named()))
    return found


def check_engines(host: Host) -> list[Diagnosis]:
    """One finding for each engine: that it can run here, or why not. One that is missing for a GPU is a warning."""
    where = "the GPUs, and deterministic experiments on the CPU" if host.gpus else "the CPU"
    return [_torch(host, where), _vllm(host), _verl(host), _flash_attention(host), _megatron(host)]


def _torch(host: Host, where: str) -> Diagnosis:
    check = "engine torch"
    if missing := [name for name in PACKAGES[TORCH] if name not in host.packages]:
        verb = "are" if len(missing) > 1 else "is"
        what = f"cannot generate or train here, nor read a tokenizer: {', '.join(missing)} {verb} not installed"
        return Diagnosis(check, "warn", what, f"pip install 'rftd[{TORCH}]', if workers run here")
    return Diagnosis(check, "ok", f"can generate and train on {where}")


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


class SeenGpus(NamedTuple):
    """The answer of torch to the question which GPUs it sees, or why there is none."""

    number: int
    why: str


def check_gpus(host: Host, seen: SeenGpus | None = None) -> list[Diagnosis]:
    """One finding for each engine that is installed: whether it sees the GPUs that workers are given; none without."""
    if not host.gpus or TORCH not in host.packages:  # that it is not installed is a finding of its own
        return []
    # vLLM's CUDA build and verl compute through the torch of the same environment.
    seen = seen or ask_torch()
    build = vllm_build(host)
    found = [_seen("torch", host, seen)]
    if not isinstance(build, NoBuild):
        ours = seen if build.device == "cuda" else SeenGpus(0, f"{build.package} is the CPU build")
        found.append(_seen("vllm", host, ours))
    if "verl" in host.packages:
        found.append(_seen("verl", host, seen))
    return found


def ask_torch() -> SeenGpus:
    """The GPUs that torch sees, asked in a process of its own: this one is not to hold any."""
    command = [sys.executable, "-P", "-c", _ASK_TORCH]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return SeenGpus(0, f"torch did not say within {_ASK_TIMEOUT_S:g} s")
    try:
        told = json.loads(done.stdout)
        number = int(told["count"])
    except (ValueError, KeyError, TypeError):
        lines = done.stderr.strip().splitlines()
        return SeenGpus(0, f"torch cannot be imported: {lines[-1] if lines else f'exit {done.returncode}'}")
    if number:
        return SeenGpus(number, "")
    built = f"is built for CUDA {told['cuda']}" if told.get("cuda") else "is a CPU build"
    return SeenGpus(0, f"torch {told['torch']} {built}")


def _seen(engine: str, host: Host, seen: SeenGpus) -> Diagnosis:
    there = len(host.gpus)
    what = f"{engine} sees {seen.number} of {host.named()}"
    if seen.number >= there:
        return Diagnosis(f"gpu {engine}", "ok", what)
    fix = f"for the CUDA builds {CUDA_ENVIRONMENT}; with them, compare the driver's CUDA (nvidia-smi) with torch's"
    status: Literal["warn", "fail"] = "warn" if engine == "vllm" else "fail"
    return Diagnosis(f"gpu {engine}", status, f"{what}: {seen.why or 'the driver lists more'}", fix)


def check_ray(host: Host, address: str = "", environ: Mapping[str, str] | None = None) -> list[Diagnosis]:
    """The findings whether this daemon can place workers on a Ray cluster; the one at `address` is looked for."""
    defaults = open_defaults(environ or {}, address) if address else []
    warnings = [Diagnosis(f"ray {default.subject}", "warn", default.what, default.fix) for default in defaults]
    return [_ray_package(host), *_ray_cluster(address), *warnings]


def _ray_cluster(address: str) -> list[Diagnosis]:
    if address in ("", "auto", "local"):
        return []
    url = address if "://" in address else f"ray://{address}"
    try:
        port = urlsplit(url).port
    except ValueError:
        port = None
    check = "ray cluster"
    if port is None:
        fix = "give --ray-address HOST:PORT, of ray start --head"
        return [Diagnosis(check, "fail", f"{address!r} is no address", fix)]
    if not somebody_listens(url, timeout_s=_RAY_TIMEOUT_S):
        what = f"nobody listens at {address}"
        return [Diagnosis(check, "fail", what, "start it there: ray start --head; or correct --ray-address")]
    return [Diagnosis(check, "ok", f"somebody listens at {address}")]


def _ray_package(host: Host) -> Diagnosis:
    check = "launcher ray"
    version = host.packages.get(RAY)
    if version is None:
        what = "not installed, and needed for rftd serve --workers ray alone"
        return Diagnosis(check, "ok", what, how_to_install(RAY))
    return Diagnosis(check, "ok", f"ray {version} can place workers: rftd serve --workers ray")


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
    check = "strategy megatron"
    found = {name: host.packages.get(name) for name in ("megatron-core", "mbridge")}
    if missing := [name for name, version in found.items() if version is None]:
        what = f"{' and '.join(missing)} not installed: trainer.trainer_strategy: megatron is refused"
        return Diagnosis(check, "ok", what, how_to_install("megatron"))
    had = " and ".join(f"{name} {version}" for name, version in found.items())
    kernels = host.packages.get("transformer-engine")
    if not host.gpus:
        return Diagnosis(check, "ok", f"{had} are there; texts are padded, for there is no GPU")
    if kernels is None:
        what = f"{had} are there; texts are padded, and whole on each rank: transformer-engine is not installed"
        return Diagnosis(check, "ok", what, "pip install transformer-engine[pytorch], built for the torch there")
    return Diagnosis(check, "ok", f"{had} are there, with transformer-engine {kernels}")
