"""The devices of this machine, and the engines able to run on them. Nothing heavy is imported.

Only beside a GPU is torch asked, in a separate process, whether it sees the GPU: a driver may list devices unusable by
torch.
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
"""Bytes of a GiB."""
TINKER: Final = "tinker"
"""Name of the engine of the service Tinker."""
_ASK_TORCH: Final = (
    "import json, torch; n = torch.cuda.device_count() if torch.cuda.is_available() else 0; "
    "print(json.dumps({'count': n, 'torch': torch.__version__, 'cuda': torch.version.cuda}))"
)
"""Program printing the GPUs that torch sees, as JSON."""
_ASK_TIMEOUT_S: Final = 120.0
"""Maximum seconds for the program that prints the GPUs seen by torch."""
_RAY_TIMEOUT_S: Final = 5.0
"""Maximum seconds to connect to a Ray cluster."""


def check_devices(host: Host) -> list[Diagnosis]:
    """Returns a finding per device available to workers of this machine; without a GPU, also the reason."""
    findings = [Diagnosis("device", "ok", _device_words(device)) for device in host.devices]
    if not host.gpus:
        findings.append(Diagnosis("device", "ok", host.named()))
    return findings


def check_engines(host: Host) -> list[Diagnosis]:
    """Returns one finding per engine: ready here, or the reason why not. A missing engine for a GPU is a warning."""
    where = "the GPUs, and deterministic experiments on the CPU" if host.gpus else "the CPU"
    return [
        _torch_finding(host, where),
        _vllm_finding(host),
        _verl_finding(host),
        _flash_attention_finding(host),
        _megatron_finding(host),
    ]


def _torch_finding(host: Host, where: str) -> Diagnosis:
    """Returns the finding about the torch engine; `where` are the devices in words."""
    check = "engine torch"
    if missing := [name for name in PACKAGES[TORCH] if name not in host.packages]:
        verb = "are" if len(missing) > 1 else "is"
        problem = f"cannot generate or train here, nor read a tokenizer: {', '.join(missing)} {verb} not installed"
        return Diagnosis(check, "warn", problem, f"pip install 'rftd[{TORCH}]', if workers run here")
    return Diagnosis(check, "ok", f"can generate and train on {where}")


def check_tinker(host: Host, environ: Mapping[str, str]) -> list[Diagnosis]:
    """Returns the findings about training and generating with the service Tinker, without asking the service.

    Of a key only the variable is named.
    """
    check = "service tinker"
    version = host.packages.get(TINKER)
    variable = next((name for name in KEYS if environ.get(name, "").strip()), None)
    key = f"{variable} is set" if variable else f"neither {' nor '.join(KEYS)} is set"
    if version is None:
        needed = "not installed (only needed for model.tinker)"
        return [Diagnosis(check, "ok", f"{needed}; {key}", how_to_install(TINKER))]
    if variable is None:
        fix = f"export {KEYS[0]} where workers run, if an experiment has model.tinker"
        return [Diagnosis(check, "ok", f"tinker {version} cannot train or generate: {key}", fix)]
    return [Diagnosis(check, "ok", f"tinker {version} can train and generate; {key}")]


class SeenGpus(NamedTuple):
    """The number of GPUs that torch sees, or why it sees none."""

    number: int
    """Number of GPUs."""
    why: str
    """Why torch sees no GPU; empty if it sees some."""


def check_gpus(host: Host, seen_gpus: SeenGpus | None = None) -> list[Diagnosis]:
    """Returns one finding per installed engine: whether it sees the workers' GPUs; none without GPUs."""
    if not host.gpus or TORCH not in host.packages:  # a missing package has its own finding
        return []
    # vLLM's CUDA build and verl compute through the torch of the same environment.
    seen_gpus = seen_gpus or ask_torch()
    build = vllm_build(host)
    findings = [_gpu_finding("torch", host, seen_gpus)]
    if not isinstance(build, NoBuild):
        ours = seen_gpus if build.device == "cuda" else SeenGpus(0, f"{build.package} is the CPU build")
        findings.append(_gpu_finding("vllm", host, ours))
    if "verl" in host.packages:
        findings.append(_gpu_finding("verl", host, seen_gpus))
    return findings


def ask_torch() -> SeenGpus:
    """Returns the number of GPUs that torch sees, from a separate process, because this process must not occupy any."""
    command = [sys.executable, "-P", "-c", _ASK_TORCH]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return SeenGpus(0, f"torch did not answer within {_ASK_TIMEOUT_S:g} s")
    try:
        torch_info = json.loads(done.stdout)
        number = int(torch_info["count"])
    except (ValueError, KeyError, TypeError):
        lines = done.stderr.strip().splitlines()
        return SeenGpus(0, f"torch cannot be imported: {lines[-1] if lines else f'exit {done.returncode}'}")
    if number:
        return SeenGpus(number, "")
    built = f"is built for CUDA {torch_info['cuda']}" if torch_info.get("cuda") else "is a CPU build"
    return SeenGpus(0, f"torch {torch_info['torch']} {built}")


def _gpu_finding(engine: str, host: Host, seen_gpus: SeenGpus) -> Diagnosis:
    """Returns the finding whether an engine sees all GPUs of the workers."""
    gpu_count = len(host.gpus)
    finding = f"{engine} sees {seen_gpus.number} of {host.named()}"
    if seen_gpus.number >= gpu_count:
        return Diagnosis(f"gpu {engine}", "ok", finding)
    fix = f"for the CUDA builds {CUDA_ENVIRONMENT}; with them, compare the driver's CUDA (nvidia-smi) with torch's"
    status: Literal["warn", "fail"] = "warn" if engine == "vllm" else "fail"
    return Diagnosis(f"gpu {engine}", status, f"{finding}: {seen_gpus.why or 'the driver lists more'}", fix)


def check_ray(host: Host, address: str = "", environ: Mapping[str, str] | None = None) -> list[Diagnosis]:
    """Returns the findings about placing workers on a Ray cluster; the cluster at `address` is contacted."""
    defaults = open_defaults(environ or {}, address) if address else []
    warnings = [Diagnosis(f"ray {default.subject}", "warn", default.what, default.fix) for default in defaults]
    return [_ray_package_finding(host), *_ray_cluster_findings(address), *warnings]


def _ray_cluster_findings(address: str) -> list[Diagnosis]:
    """Returns a finding whether somebody listens at the cluster's address; no finding for no address, `auto` and
    `local`.
    """
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
        problem = f"nothing listens at {address}"
        return [Diagnosis(check, "fail", problem, "start it there: ray start --head; or correct --ray-address")]
    return [Diagnosis(check, "ok", f"somebody listens at {address}")]


def _ray_package_finding(host: Host) -> Diagnosis:
    """Returns the finding about the package ray."""
    check = "launcher ray"
    version = host.packages.get(RAY)
    if version is None:
        state = "not installed (only needed for `rftd serve --workers ray`)"
        return Diagnosis(check, "ok", state, how_to_install(RAY))
    return Diagnosis(check, "ok", f"ray {version} can place workers: rftd serve --workers ray")


def _device_words(device: Device) -> str:
    """Returns kind, index, name and memory of a device."""
    size = f", {device.memory_bytes / _GIB:.1f} GiB" if device.memory_bytes else ""
    return f"{device.kind} {device.index}: {device.name}{size}"


def _vllm_finding(host: Host) -> Diagnosis:
    """Returns the finding about the vLLM engine."""
    check = "engine vllm"
    build = vllm_build(host)
    if isinstance(build, NoBuild):
        # Without a GPU the torch engine is faster, so nothing needs fixing.
        return Diagnosis(check, "warn" if host.gpus else "ok", f"cannot generate: {build.why}", build.fix)
    where = "the GPUs" if build.device == "cuda" else "the CPU"
    return Diagnosis(check, "ok", f"{build.package} {build.version} can generate on {where}")


def _verl_finding(host: Host) -> Diagnosis:
    """Returns the finding about the veRL engine."""
    check = "engine verl"
    version = host.packages.get("verl")
    if version is None:
        problem = "cannot train: verl is not installed"
        return Diagnosis(check, "warn" if host.gpus else "ok", problem, how_to_install("verl"))
    where = f"the ranks of {host.named()}" if host.gpus else "ranks on the CPU, where a file writes it"
    return Diagnosis(check, "ok", f"verl {version} can train on {where}")


def _flash_attention_finding(host: Host) -> Diagnosis:
    """Returns the finding about the package flash-attn."""
    check = "kernels flash-attn"
    version = host.packages.get("flash-attn")
    for_what = "verl's texts without padding and sequences that ranks share"
    if not host.gpus:
        state = "not installed" if version is None else f"flash-attn {version} is installed"
        return Diagnosis(check, "ok", f"{state}, and there is no GPU for it: texts are padded")
    if version is None:
        state_needed = f"not installed (needed for {for_what}): texts are padded"
        return Diagnosis(check, "ok", state_needed, "pip install flash-attn, built for the torch that is installed")
    return Diagnosis(check, "ok", f"flash-attn {version} is there for {for_what}")


def _megatron_finding(host: Host) -> Diagnosis:
    """Returns the finding about the packages of Megatron."""
    check = "strategy megatron"
    versions = {name: host.packages.get(name) for name in ("megatron-core", "mbridge")}
    if missing := [name for name, version in versions.items() if version is None]:
        state = f"{' and '.join(missing)} not installed: trainer.trainer_strategy: megatron is refused"
        return Diagnosis(check, "ok", state, how_to_install("megatron"))
    installed = " and ".join(f"{name} {version}" for name, version in versions.items())
    kernels = host.packages.get("transformer-engine")
    if not host.gpus:
        return Diagnosis(check, "ok", f"{installed} are there; texts are padded, for there is no GPU")
    if kernels is None:
        state = f"{installed} are there; texts are padded, and whole on each rank: transformer-engine is not installed"
        return Diagnosis(check, "ok", state, "pip install transformer-engine[pytorch], built for the torch there")
    return Diagnosis(check, "ok", f"{installed} are there, with transformer-engine {kernels}")
