"""The memory that training takes at least on each device, by the sizes of the models: known before anything is loaded.

It is a lower bound, so that nothing that fits is refused.
"""

from __future__ import annotations

from bisect import bisect_left
from pathlib import Path
from typing import Final

from rftd.streams.schedule import eval_due, kept_versions, publish_due, trainer_interval
from rftd.streams.spec import StageSpec
from rftd.workers.devices.device_memory import Need, elements_of, number_in, settings_of
from rftd.workers.training.losses.objective import Objective

FIX: Final = (
    "free memory there, or take a smaller model, model.lora_configs, a smaller "
    "trainer.max_token_len_per_gpu, or another device"
)
RANK_PROCESS: Final = Need("its process", 128 * 1024**2)
"""What a rank's process has for its own once it has imported torch: less than half of what was seen."""
_FLOAT32_BYTES: Final = 4
_HALF_BYTES: Final = 2
_DEVICE_CHANNEL: Final = "nccl"


def training_needs(stage: StageSpec, base: Path, *, spread: int = 1) -> list[Need]:
    """The needs of an engine of ours on one device while it trains the stage from the model in `base`.

    Weights, gradients and moments are float32, of which each device has one part of `spread`. Of activations only what
    goes into each layer is counted, for a whole micro-batch: that much is kept even where layers are computed again.
    """
    objective = Objective.of(stage.algorithm)
    model_bytes = _FLOAT32_BYTES * elements_of(base) // spread
    learnt_bytes = model_bytes if stage.model.lora is None else 0
    needs = [Need("weights", model_bytes), Need("gradients", learnt_bytes)]
    if stage.algorithm.optimizer.kind != "sgd":
        needs.append(Need("the optimizer's moments", 2 * learnt_bytes))
    if objective.needs_reference:
        needs.append(Need("the reference", learnt_bytes))
    if "values" in objective.pass_fields:
        critic_bytes = _FLOAT32_BYTES * elements_of(Path(stage.trainer.critic_path or base)) // spread
        needs.append(Need("the critic with gradients and moments", 4 * critic_bytes))
    if "teacher_logprobs" in objective.pass_fields and stage.trainer.teacher_path:
        teacher_bytes = _FLOAT32_BYTES * elements_of(Path(stage.trainer.teacher_path)) // spread
        needs.append(Need("the teacher", teacher_bytes))
    return [*needs, _activations(stage, base)]


def _activations(stage: StageSpec, base: Path) -> Need:
    settings = settings_of(base)
    layers = number_in(settings, "num_hidden_layers", "n_layer", "num_layers")
    width = number_in(settings, "hidden_size", "n_embd", "d_model")
    tokens = min(stage.trainer.max_tokens_per_micro_batch, stage.train_batch_size * stage.model.max_model_len)
    size = _HALF_BYTES if stage.trainer.dtype == "bfloat16" else _FLOAT32_BYTES
    return Need(f"activations of {tokens} tokens", tokens * layers * width * size)


def held_need(stage: StageSpec, base: Path) -> Need:
    """The versions that the torch engine's one process keeps on its device for explorers, in the dtype of rollouts.

    Ranks give theirs to the host. Adapters alone are not counted.
    """
    arguments = stage.trainer.engine_args
    adapter_alone = stage.model.lora is not None and arguments.get("lora_publish") == "adapter"
    on_device = stage.sync.method == _DEVICE_CHANNEL and not arguments.get("ranks") and not adapter_alone
    count = _held_versions(stage) if on_device else 0
    size = _HALF_BYTES if stage.rollout.dtype == "bfloat16" else _FLOAT32_BYTES
    return Need(f"{count} published versions", count * elements_of(base) * size)


def _held_versions(stage: StageSpec) -> int:
    """The most versions that a channel without files is sure to keep at a time.

    Those that are evaluated and the last one are files whatever the channel.
    """
    if stage.kind != "train" and not trainer_interval(stage.sync):
        return 1  # it publishes when it is asked, and nobody knows how often
    kept = kept_versions(stage)
    # A long stage is as its beginning.
    steps = range(min(stage.total_steps, 4 * (kept + 1)))
    due = [step for step in steps if publish_due(stage, step) and not eval_due(stage, step)]
    return max((index + 1 - bisect_left(due, newest - kept) for index, newest in enumerate(due)), default=0)
