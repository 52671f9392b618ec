"""The surroundings of the torch engine when it opens: torch's switches, the device's memory, and what bits depend
on."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import torch

from rftd.ops.releases import release_of
from rftd.streams.spec import StageSpec
from rftd.workers.devices.device_memory import Need, check_memory, elements_of, number_in, settings_of
from rftd.workers.training.losses.objective import Objective

_FIX: Final = (
    "free memory there, or take a smaller model, model.lora_configs, a smaller "
    "trainer.max_token_len_per_gpu, or another device"
)
_FLOAT32_BYTES: Final = 4
_HALF_BYTES: Final = 2


class Determinism:
    """torch's switch of deterministic algorithms, which holds for the whole process, and is put back at the end."""

    def __init__(self) -> None:
        self._before: bool | None = None

    def set(self, deterministic: bool) -> None:
        """Sets it; what it was before the first call is remembered."""
        if self._before is None:
            self._before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(deterministic)
        # Memory that nobody wrote is then NaN instead of anything: it ends in a refused step, not in other weights.
        torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]

    def put_back(self) -> None:
        """Sets it to what it was. Idempotent."""
        if self._before is not None:
            torch.use_deterministic_algorithms(self._before)
            self._before = None


def environment(device: torch.device, *, threads: int) -> dict[str, str]:
    """The releases, threads, device and processor: its model decides which kernels the libraries choose."""
    found = {
        "torch": str(torch.__version__),
        "transformers": release_of("transformers"),
        "safetensors": release_of("safetensors"),
        # The number of threads decides how a sum is cut, and so its last bits.
        "threads": str(threads),
        "device": device.type,
        "deterministic_algorithms": str(torch.are_deterministic_algorithms_enabled()).lower(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
    if device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
        found["cuda"] = str(torch.version.cuda)
    return found


def _processor() -> str:
    """The model of the processor, as the kernel names it; else as Python does."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def check_training(stages: Iterable[StageSpec], base: Path, device: str) -> None:
    """Returns if the device has room for each stage, one after the other. Raises DeviceMemoryError."""
    for stage in (each for each in stages if each.kind != "explore"):
        check_memory(training_needs(stage, base), device, where=str(base), fix=_FIX)


def training_needs(stage: StageSpec, base: Path) -> list[Need]:
    """The needs of the torch engine while it trains the stage from the model in `base`.

    It is a lower bound, so that nothing that fits is refused. Weights, gradients and moments are float32. Of
    activations only what goes into each layer is counted, for a whole micro-batch: that much is kept even where layers
    are computed again.
    """
    objective = Objective.of(stage.algorithm)
    model_bytes = _FLOAT32_BYTES * elements_of(base)
    learnt_bytes = model_bytes if stage.model.lora is None else 0
    needs = [Need("weights", model_bytes), Need("gradients", learnt_bytes)]
    if stage.algorithm.optimizer.kind != "sgd":
        needs.append(Need("the optimizer's moments", 2 * learnt_bytes))
    if objective.needs_reference:
        needs.append(Need("the reference", learnt_bytes))
    if "values" in objective.pass_fields:
        critic_bytes = _FLOAT32_BYTES * elements_of(Path(stage.trainer.critic_path or base))
        needs.append(Need("the critic with gradients and moments", 4 * critic_bytes))
    if "teacher_logprobs" in objective.pass_fields and stage.trainer.teacher_path:
        needs.append(Need("the teacher", _FLOAT32_BYTES * elements_of(Path(stage.trainer.teacher_path))))
    settings = settings_of(base)
    layers = number_in(settings, "num_hidden_layers", "n_layer", "num_layers")
    width = number_in(settings, "hidden_size", "n_embd", "d_model")
    tokens = min(stage.trainer.max_tokens_per_micro_batch, stage.train_batch_size * stage.model.max_model_len)
    size = _HALF_BYTES if stage.trainer.dtype == "bfloat16" else _FLOAT32_BYTES
    needs.append(Need(f"activations of {tokens} tokens", tokens * layers * width * size))
    return needs
