"""Rows of veRL's table that several of its sections have, and the reasons that many rows give."""

from __future__ import annotations

from typing import Final

from rftd.daemon.config.verl.key import VerlKey, dropped, person

SPEED: Final = "changes speed or memory alone"
PLUMBING: Final = "is a part of veRL's own machinery"
CHECKPOINTS: Final = "checkpoints hold all that a restart needs"
OF_CHECKPOINTS: Final = ("load_contents", "async_save", "strict", "mbridge_config")
"""Keys below `checkpoint` that nothing is lost without."""


def replayed(section: str) -> tuple[VerlKey, VerlKey]:
    """The rows of `router_replay`, which its mode switches on."""
    switch = f"{section}.router_replay.mode"
    note = "experts are not replayed yet"
    return person(switch, note, "text", "disabled"), person(f"{section}.router_replay.*", note, switch=switch)


def switched(section: str, note: str) -> tuple[VerlKey, VerlKey]:
    """The rows of a section that its key `enable` switches on."""
    switch = f"{section}.enable"
    return person(switch, note, "bool", False), person(f"{section}.*", note, switch=switch)


def wrapping(section: str) -> tuple[VerlKey, ...]:
    """Rows of the keys without effect in one section `fsdp_config`."""
    return (
        *(
            dropped(f"{section}.{name}", SPEED)
            for name in (
                *("wrap_policy.*", "offload_policy", "use_orig_params", "seed", "full_determinism", "strategy"),
                *("entropy_from_logits_with_chunking", "entropy_from_logits_chunk_size", "entropy_checkpointing"),
                *("use_torch_compile", "use_no_sync_for_gradient_accumulation", "pad_to_length", "forward_only"),
                *("pad_to_length_bucket", "ulysses_sequence_parallel_size", "turbo_config.*"),
            )
        ),
        person(f"{section}.model_dtype", "write trainer.engine_args.dtype", "text", "fp32"),
        person(f"{section}.dtype", "write trainer.engine_args.dtype", "text", "bfloat16"),
        person(f"{section}.mixed_precision.*", "write trainer.engine_args.dtype"),
        *switched(f"{section}.qat", "training for low precision is not here"),
    )
