"""`trainer_strategy: megatron`: what acts with it, what is refused by name, and what does nothing elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from rftd.daemon.config.loading import Submission
from rftd.workers.devices.host import ANY_HOST, Device, Host

Load = Callable[..., Submission]
Errors = Callable[..., list[str]]
VERL = "trainer.trainer_type=verl"
MEGATRON = "trainer.trainer_strategy=megatron"
ACTOR = "trainer.trainer_config.actor_rollout_ref.actor"
PACKAGES = {"verl": "0.9.1", "megatron-core": "0.16.1", "mbridge": "0.15.1"}
ON_CPU = Host(no_gpu="nvidia-smi not found", packages=PACKAGES)
TWO_RANKS = "trainer.engine_args={device: cpu, ranks: 2}"
GPU = Device(kind="cuda", index=0, name="NVIDIA H100", memory_bytes=80 * 1024**3)


def gpus(count: int, **packages: str) -> Host:
    """A machine with GPUs, and further packages."""
    found = tuple(msgspec.structs.replace(GPU, index=each, visible=str(each)) for each in range(count))
    return Host(
        devices=found, packages={**PACKAGES, **{name.replace("_", "-"): each for name, each in packages.items()}}
    )


@pytest.mark.parametrize(
    ("host", "overrides", "arguments"),
    [
        (ON_CPU, [MEGATRON], {"strategy": "megatron"}),
        (ON_CPU, [f"{ACTOR}.strategy=megatron"], {"strategy": "megatron"}),
        (
            ON_CPU,
            [MEGATRON, TWO_RANKS, "trainer.megatron.tensor_model_parallel_size=2"],
            {"strategy": "megatron", "device": "cpu", "ranks": 2, "tensor_model_parallel_size": 2},
        ),
        (
            ON_CPU,
            [MEGATRON, TWO_RANKS, f"{ACTOR}.megatron.tensor_model_parallel_size=2"],
            {"strategy": "megatron", "device": "cpu", "ranks": 2, "tensor_model_parallel_size": 2},
        ),
        (
            gpus(5, transformer_engine="2.9"),
            [
                MEGATRON,
                "mode=train",
                "trainer.megatron.tensor_model_parallel_size=2",
                "trainer.use_remove_padding=true",
            ],
            {
                "strategy": "megatron",
                "tensor_model_parallel_size": 2,
                "sequence_parallel": True,
                "use_remove_padding": True,
                "gradient_checkpointing": True,
            },
        ),
        (
            gpus(5, transformer_engine="2.9"),
            [
                MEGATRON,
                "mode=train",
                "trainer.megatron={tensor_model_parallel_size: 2, sequence_parallel: false}",
                "trainer.trainer_config.actor_rollout_ref.model.enable_gradient_checkpointing=true",
            ],
            {"strategy": "megatron", "tensor_model_parallel_size": 2, "gradient_checkpointing": True},
        ),
        (
            ANY_HOST,
            [MEGATRON, "trainer.megatron.tensor_model_parallel_size=2", TWO_RANKS],
            {
                "strategy": "megatron",
                "device": "cpu",
                "ranks": 2,
                "tensor_model_parallel_size": 2,
                "sequence_parallel": True,
            },
        ),
    ],
)
def test_sizes_of_megatron_reach_the_engine(
    load: Load, host: Host, overrides: list[str], arguments: dict[str, Any]
) -> None:
    assert load(overrides=[VERL, *overrides], host=host).spec.stages[0].trainer.engine_args == arguments


@pytest.mark.parametrize(
    ("host", "overrides", "words"),
    [
        (
            Host(packages={"verl": "0.9.1"}),
            [MEGATRON],
            ["trainer.trainer_strategy", "megatron-core and mbridge are not installed", "rftd[megatron]", "fsdp2"],
        ),
        (
            Host(packages={"verl": "0.9.1", "megatron-core": "0.16.1"}),
            [f"{ACTOR}.strategy=megatron"],
            [f"{ACTOR}.strategy", "mbridge is not installed"],
        ),
        (
            Host(packages={"verl": "0.9.1", "mbridge": "0.15.1"}),
            ["trainer.engine_args={device: cpu, strategy: megatron}"],
            ["trainer.engine_args.strategy", "megatron-core is not installed"],
        ),
        (
            ON_CPU,
            [MEGATRON, "trainer.megatron.pipeline_model_parallel_size=2"],
            ["trainer.megatron.pipeline_model_parallel_size: is 2", "pipeline parallelism is not supported"],
        ),
        (
            ON_CPU,
            [MEGATRON, f"{ACTOR}.megatron.context_parallel_size=4"],
            [f"{ACTOR}.megatron.context_parallel_size: is 4", "tensor_model_parallel_size and sequence_parallel"],
        ),
        (
            ON_CPU,
            [MEGATRON, "trainer.megatron.expert_model_parallel_size=8"],
            ["expert_model_parallel_size: is 8", "models with experts are not supported"],
        ),
        (
            ON_CPU,
            [MEGATRON, TWO_RANKS, "trainer.megatron.tensor_model_parallel_size=3"],
            ["trainer.megatron.tensor_model_parallel_size: is 3", "has 2 ranks", "write 1 or 2"],
        ),
        (
            ON_CPU,
            [MEGATRON, f"{ACTOR}.strategy=fsdp2"],
            [f"{ACTOR}.strategy: is 'fsdp2'", "megatron in trainer.trainer_strategy"],
        ),
        (
            ON_CPU,
            [
                MEGATRON,
                TWO_RANKS,
                "trainer.megatron.tensor_model_parallel_size=1",
                f"{ACTOR}.megatron.tensor_model_parallel_size=2",
            ],
            [f"{ACTOR}.megatron.tensor_model_parallel_size: is 2", "keep one of the two"],
        ),
        (
            ON_CPU,
            [MEGATRON, f"{ACTOR}.megatron.sequence_parallel=3"],
            ["sequence_parallel: is 3", "write true or false"],
        ),
        (
            ON_CPU,
            [MEGATRON, "model.lora_configs=[{name: a, lora_rank: 8}]"],
            ["model.lora_configs", "has an adapter", "trainer.trainer_strategy: fsdp2"],
        ),
    ],
)
def test_what_megatron_cannot_do_here_is_refused_by_name(
    errors: Errors, host: Host, overrides: list[str], words: list[str]
) -> None:
    texts = errors(overrides=[VERL, *overrides], host=host)
    assert len(texts) == 1, texts
    assert all(word in texts[0] for word in words), texts


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["trainer.megatron.tensor_model_parallel_size=2"], "has no effect: only used by Megatron, and FSDP2 trains"),
        ([f"{ACTOR}.megatron.param_offload=true"], "has no effect: only used by Megatron, and FSDP2 trains"),
        ([MEGATRON, "trainer.ulysses_sequence_parallel_size=2"], "only used by FSDP2, and the strategy is Megatron"),
        ([MEGATRON, f"{ACTOR}.fsdp_config.fsdp_size=2"], "only used by FSDP2, and the strategy is Megatron"),
        ([MEGATRON, "trainer.use_remove_padding=true"], "texts are padded: verl trains on the CPU"),
        ([MEGATRON, f"{ACTOR}.megatron.override_transformer_config={{a: 1}}"], "config.json"),
        (
            [MEGATRON, "trainer.trainer_config.actor_rollout_ref.model.enable_gradient_checkpointing=true"],
            "where Megatron keeps all activations",
        ),
        (
            [
                MEGATRON,
                TWO_RANKS,
                "trainer.megatron={tensor_model_parallel_size: 2, sequence_parallel: true}",
            ],
            "trainer.megatron.sequence_parallel has no effect: verl trains on the CPU",
        ),
    ],
)
def test_what_does_nothing_with_the_strategy_is_said(load: Load, overrides: list[str], says: str) -> None:
    said = load(overrides=[VERL, *overrides], host=ON_CPU).spec.warnings
    assert [text for text in said if says in text], said
