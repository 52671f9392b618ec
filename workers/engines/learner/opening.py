"""The preparation of an engine: torch's switch of deterministic algorithms, the memory check, and facts that influence
the weights' bits.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import structlog
import torch

from rftd.ops.releases import release_of
from rftd.streams.spec.spec import StageSpec
from rftd.workers.devices.device_memory import check_memory
from rftd.workers.learning.memory_needs import FIX, held_need, training_needs

log = structlog.get_logger(__name__)
"""Log of this module."""

_CUBLAS: Final = "CUBLAS_WORKSPACE_CONFIG"
"""Environment variable that makes cuBLAS deterministic."""
_LACKING: Final = "does not have a deterministic implementation"
"""A part of torch's error for a GPU operation without a deterministic kernel."""


class Determinism:
    """torch's switch of deterministic algorithms: on a CPU for the process until put back, on a GPU during optimizer
    steps only.

    On a GPU, drawing tokens in the same process needs kernels without a deterministic form.
    """

    def __init__(self) -> None:
        """Begins with torch's switch unchanged."""
        self._before: bool | None = None
        self._in_steps = False
        self._lacking = ""

    def begin(self, device: torch.device) -> None:
        """Enables deterministic algorithms for an engine on the device."""
        if device.type != "cuda":
            self.set(True)
            return
        self._in_steps = not self._lacking
        # Read by cuBLAS when it is first used; without it, it may take another kernel each time.
        os.environ.setdefault(_CUBLAS, ":4096:8")

    def set(self, deterministic: bool) -> None:
        """Sets the switch for the process; the first call remembers the state before."""
        if self._before is None:
            self._before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(deterministic)
        # Memory that nobody wrote is then NaN instead of anything: it ends in a refused step, not in other weights.
        torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]

    @property
    def on(self) -> bool:
        """True if optimizer steps use deterministic algorithms."""
        return self._in_steps or torch.are_deterministic_algorithms_enabled()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Enables deterministic algorithms within the context, on a GPU."""
        if not self._in_steps:
            yield
            return
        before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(True)
        # It would be a write of all the memory that a step uses.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before)

    def disable_if_unsupported(self, error: RuntimeError) -> bool:
        """Returns whether the error is about a GPU operation without a deterministic kernel; if so, switches
        deterministic steps off, with a log line.
        """
        if not self._in_steps or _LACKING not in str(error):
            return False
        self._in_steps = False
        self._lacking = str(error).partition(_LACKING)[0].strip()
        log.warning("training.not_deterministic", because=f"torch has no such form of {self._lacking}")
        return True

    def put_back(self) -> None:
        """Restores the state before the first call of `set`. Idempotent."""
        if self._before is not None:
            torch.use_deterministic_algorithms(self._before)
            self._before = None


def environment(device: torch.device, *, threads: int, deterministic: bool) -> dict[str, str]:
    """Returns the facts that decide the libraries' kernels, and so the weights' bits: releases, threads, device,
    processor model.
    """
    surroundings = {
        "torch": str(torch.__version__),
        "transformers": release_of("transformers"),
        "safetensors": release_of("safetensors"),
        # The number of threads decides how a sum is cut, and so its last bits.
        "threads": str(threads),
        "device": device.type,
        "deterministic_algorithms": str(deterministic).lower(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
    if device.type == "cuda":
        surroundings["gpu"] = torch.cuda.get_device_name(device)
        surroundings["cuda"] = str(torch.version.cuda)
    return surroundings


def _processor() -> str:
    """Returns the model name of the processor, from the kernel; else from Python."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def check_training(stages: Iterable[StageSpec], base: Path, device: str) -> None:
    """Raises DeviceMemoryError if the device has too little free memory for any one of the stages."""
    for stage in (stage for stage in stages if stage.kind != "explore"):
        needs = [*training_needs(stage, base), held_need(stage, base)]
        check_memory(needs, device, where=str(base), fix=FIX)
