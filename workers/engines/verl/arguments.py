"""`engine_args` of the verl trainer engine; importable without torch and verl."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from rftd.ops import limits
from rftd.ops.errors import ConfigError
from rftd.ops.plugins import parsed
from rftd.workers.devices.compute_device import DeviceName
from rftd.workers.devices.device_memory import number_in, settings_of
from rftd.workers.learning.critic_arguments import CriticArgs

DEVICE: Final = "trainer.engine_args.device"
"""Field of the experiment file with the engine's device."""


class VerlTrainerArgs(CriticArgs, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings below `trainer.engine_args`. Fields of the guide's `trainer_config` come here under verl's names."""

    device: DeviceName = "auto"
    """`auto`: cuda if there is one and the experiment is not deterministic."""
    strategy: Literal["fsdp2", "megatron"] = "fsdp2"
    """`megatron`: each tensor is cut over `tensor_model_parallel_size` ranks; it needs megatron-core and mbridge."""
    tensor_model_parallel_size: Annotated[int, msgspec.Meta(ge=1, le=limits.RANKS)] = 1
    """Megatron's: the ranks that share each tensor; it divides that of all ranks, and the model's heads."""
    sequence_parallel: bool = False
    """Megatron's: they share the places of a text outside attention, too. It needs transformer-engine."""
    ulysses_sequence_parallel_size: Annotated[int, msgspec.Meta(ge=1, le=limits.RANKS)] = 1
    """The number of ranks that share each sequence; it divides that of all ranks, and needs `use_remove_padding`."""
    fsdp_size: Annotated[int, msgspec.Meta(ge=-1, le=limits.RANKS)] = -1
    """The number of ranks that the weights are spread over, which divides that of all; others hold copies. -1: all."""
    reshard_after_forward: bool = True
    forward_prefetch: bool = False
    param_offload: bool = False
    """True: the policy's and the critic's weights wait on the host between uses of the GPU."""
    optimizer_offload: bool = False
    ref_param_offload: bool = False
    """True: so do the weights of the reference and the teacher."""
    use_no_sync_for_gradient_accumulation: bool = True
    """False: ranks add their gradients up after each micro-batch, which takes less memory and more time."""
    gradient_checkpointing: bool = False
    """True: one state per layer is kept and the rest computed again for the gradient."""
    activation_offload: bool = False
    use_remove_padding: bool = False
    """True: texts of a micro-batch follow one another without padding. It needs flash-attn."""
    attn_implementation: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    """The attention of padded micro-batches; without padding it is flash_attention_2."""
    use_dynamic_bsz: bool = True
    """True: micro-batches are cut by tokens, `trainer.max_token_len_per_gpu` of each rank."""
    micro_batch_size_per_gpu: int = 0
    """The responses of a micro-batch where they are not cut by tokens."""
    entropy_checkpointing: bool = False
    ranks: Annotated[int, msgspec.Meta(ge=1, le=limits.RANKS)] = 1
    """The number of processes on a CPU; on GPUs there is one for each."""
    nodes: Annotated[int, msgspec.Meta(ge=1, le=limits.RANKS)] = 1
    """The nodes of a Ray cluster over which the ranks are spread, as many on each; on GPUs whole nodes are taken."""
    rank_timeout_s: Annotated[float, msgspec.Meta(gt=0, le=limits.CALL_TIMEOUT_S)] = limits.RANK_CALL_TIMEOUT_S
    """The longest that one call of the ranks may take, a step or a checkpoint."""
    save_strategy: Literal["unrestricted", "single_thread", "single_process", "single_node"] = "unrestricted"
    """The ranks write a checkpoint at once; with `single_node` those of one machine do, with the others one rank."""
    lora_publish: Literal["merged", "adapter"] = "merged"
    """`merged`: explorers get whole weights; `adapter`: the adapter alone, which they add to their base."""


OPENED_WITH: Final = (
    "device",
    "ranks",
    "nodes",
    "rank_timeout_s",
    "strategy",
    "tensor_model_parallel_size",
    "sequence_parallel",
    "ulysses_sequence_parallel_size",
    "fsdp_size",
    "reshard_after_forward",
    "forward_prefetch",
    "param_offload",
    "optimizer_offload",
    "use_no_sync_for_gradient_accumulation",
    "gradient_checkpointing",
    "activation_offload",
    "use_remove_padding",
    "attn_implementation",
    "entropy_checkpointing",
    "lora_publish",
)
"""Arguments that apply to all stages, because the engine loads its model once."""


def parse(arguments: Mapping[str, Any]) -> VerlTrainerArgs:
    """Returns the parsed arguments. Raises ConfigError."""
    return parsed(arguments, VerlTrainerArgs, taker="the verl engine", field="trainer.engine_args")


def check_heads(arguments: VerlTrainerArgs, folder: Path) -> None:
    """Raises ConfigError if the model's attention heads cannot be divided among the ranks that share a sequence."""
    size = arguments.ulysses_sequence_parallel_size
    settings = settings_of(folder)
    heads = number_in(settings, "num_attention_heads", "n_head")
    pairs = number_in(settings, "num_key_value_heads") or heads
    # Where there are fewer keys and values than ranks, each of them is of several ranks.
    if heads % size or (pairs % size and size % pairs):
        raise ConfigError(
            f"{size} ranks share each sequence, and cannot share {heads} attention heads "
            f"with {pairs} of keys and values evenly",
            field="trainer.ulysses_sequence_parallel_size",
            fix="write " + " or ".join(str(ranks) for ranks in range(1, heads + 1) if heads % ranks == 0),
        )
