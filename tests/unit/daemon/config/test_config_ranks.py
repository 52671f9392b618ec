"""The ranks of a trainer: sizes by which they share weights and sequences, their GPUs, and the nodes they are on."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from rftd.daemon.config.loading import Submission
from rftd.workers.devices.host import ANY_HOST, Device, Host

Load = Callable[..., Submission]
Errors = Callable[..., list[str]]
VERL = "trainer.trainer_type=verl"
GPU = Device(kind="cuda", index=0, name="g", uuid="GPU-0", memory_bytes=1 << 36, visible="0")
ON_CPU = Host(no_gpu="nvidia-smi not found", packages={"verl": "0.9.1"})
WARMUP = """
stages:
- stage_name: warmup
  mode: train
  algorithm: {algorithm_type: sft}
  buffer:
    train_batch_size: 4
    trainer_input: {experience_buffer: {name: w, path: /w.jsonl}}
"""


def gpus(count: int, node: str = "", **packages: str) -> Host:
    """A machine, or a node of a cluster, with so many GPUs."""
    found = tuple(msgspec.structs.replace(GPU, index=each, visible=str(each), node=node) for each in range(count))
    return Host(devices=found, clustered=bool(node), packages={"verl": "0.9.1", **packages})


CPU_ARGS = "trainer.engine_args={{device: cpu, {}}}".format
SEQUENCES = "trainer.ulysses_sequence_parallel_size"
FSDP_SIZE = "trainer.trainer_config.actor_rollout_ref.actor.fsdp_config.fsdp_size"
FLASH = {"flash-attn": "2.8.3"}


@pytest.mark.parametrize(
    ("host", "overrides", "words"),
    [
        (ON_CPU, [CPU_ARGS("ranks: 2, fsdp_size: 3")], ["engine_args.fsdp_size: is 3", "2 ranks", "write -1 for all"]),
        (ON_CPU, [CPU_ARGS("ranks: 4, fsdp_size: 3")], ["is 3, but the trainer has 4 ranks", "1 or 2 or 4"]),
        (ON_CPU, [CPU_ARGS("ranks: 2, fsdp_size: 0")], ["is 0", "over 0 ranks"]),
        (ON_CPU, [CPU_ARGS("fsdp_size: -2")], ["is -2", "expected `int` >= -1"]),
        (gpus(4), [f"{FSDP_SIZE}=8"], [f"{FSDP_SIZE}: is 8", "has 4 ranks"]),
        (gpus(3, **FLASH), [f"{SEQUENCES}=2"], [f"{SEQUENCES}: is 2", "has 3 ranks", "write 1 or 3"]),
        (
            ON_CPU,
            [CPU_ARGS("ranks: 2, ulysses_sequence_parallel_size: 2")],
            ["engine_args.ulysses_sequence_parallel_size: is 2", "flash-attn on a GPU", "computes on the CPU"],
        ),
        (ON_CPU, [CPU_ARGS("use_remove_padding: true")], ["use_remove_padding: is True", "computes on the CPU"]),
        (
            gpus(2),
            ["trainer.engine_args={attn_implementation: flash_attention_2}"],
            ["is 'flash_attention_2'", "flash-attn is not installed"],
        ),
        (
            gpus(2, **FLASH),
            [f"{SEQUENCES}=2", "trainer.use_remove_padding=false"],
            ["trainer.use_remove_padding: is false, but 2 ranks share each sequence"],
        ),
        (ON_CPU, [CPU_ARGS("ranks: 100000")], ["ranks: is 100000", "<= 1024"]),
        (ON_CPU, [CPU_ARGS("ranks: -1")], ["ranks: is -1", ">= 1"]),
        (ON_CPU, [CPU_ARGS("rank_timeout_s: 0")], ["rank_timeout_s: is 0", "> 0"]),
        (ON_CPU, [CPU_ARGS("rank_timeout_s: 1e9")], ["rank_timeout_s: is 1000000000.0", "<= 10000000"]),
    ],
)
def test_sizes_that_the_ranks_cannot_have_are_refused_with_the_numbers(
    small: str, errors: Errors, host: Host, overrides: list[str], words: list[str]
) -> None:
    (text,) = errors(small + WARMUP, overrides=[VERL, *overrides], host=host)
    for each in words:
        assert each in text


@pytest.mark.parametrize("engine", ["torch", "fake"])
@pytest.mark.parametrize("argument", ["ranks: 100000", "ranks: -1", "rank_timeout_s: 0", "rank_timeout_s: -1"])
def test_no_engine_takes_such_a_number_of_ranks_or_such_a_time(errors: Errors, engine: str, argument: str) -> None:
    (text,) = errors(overrides=[f"trainer.trainer_type={engine}", f"trainer.engine_args={{{argument}}}"], host=ON_CPU)
    assert f"trainer.engine_args.{argument.partition(':')[0]}: is " in text


def test_ranks_that_share_sequences_have_texts_without_padding(load: Load, small: str) -> None:
    fits = [VERL, f"{SEQUENCES}=2", f"{FSDP_SIZE}=2"]
    (stage,) = load(small + WARMUP, overrides=fits, host=gpus(4, **FLASH)).spec.stages
    assert stage.trainer.devices == 4
    assert stage.trainer.engine_args == {
        "ulysses_sequence_parallel_size": 2,
        "fsdp_size": 2,
        "use_remove_padding": True,
        "gradient_checkpointing": True,
    }
    unseen = (
        load(small + WARMUP, overrides=[*fits, "trainer.engine_args={ranks: 7}"], host=ANY_HOST).spec.stages[0].trainer
    )
    assert unseen.engine_args["ranks"] == 7, "nobody knows that machine"


def of_nodes(*counts: int) -> Host:
    """A cluster whose nodes have so many GPUs."""
    each = [gpus(count, f"10.0.0.{number}") for number, count in enumerate(counts, 1)]
    return msgspec.structs.replace(each[0], devices=tuple(device for host in each for device in host.devices))


@pytest.mark.parametrize("engine", ["verl", "torch"])
def test_a_trainer_beyond_one_node_takes_whole_nodes(load: Load, small: str, errors: Errors, engine: str) -> None:
    text = small + WARMUP

    def asked(ranks: int) -> list[str]:
        args = [f"trainer.engine_args={{device: cuda, ranks: {ranks}}}"] * (engine == "torch")
        return [f"trainer.trainer_type={engine}", *args]

    (said,) = errors(text, overrides=asked(6), host=of_nodes(4, 2))
    assert "the trainer needs 6 GPUs in whole nodes, but a node has 4" in said
    (stage,) = load(text, overrides=asked(8), host=of_nodes(4, 4)).spec.stages
    assert (stage.trainer.devices, stage.trainer.engine_args["nodes"]) == (8, 2)
    (stage,) = load(text, overrides=asked(4), host=of_nodes(4, 4) if engine == "torch" else of_nodes(4)).spec.stages
    assert (stage.trainer.devices, stage.trainer.engine_args.get("nodes")) == (4, None)
    if engine == "verl":
        one = load(text, overrides=[*asked(0), "cluster.node_num=1", "cluster.gpu_per_node=4"], host=of_nodes(4, 2))
        assert one.spec.stages[0].trainer.devices == 4
        assert load(text, overrides=asked(0), host=gpus(6)).spec.stages[0].trainer.devices == 6, "one machine"


def test_nodes_that_ranks_or_a_cluster_cannot_have_are_refused(load: Load, small: str, errors: Errors) -> None:
    def args(text: str) -> list[str]:
        return ["trainer.trainer_type=torch", f"trainer.engine_args={{device: cpu, {text}}}"]

    cpus = [Device(kind="cpu", index=0, name="4 CPUs", memory_bytes=0, node=f"10.0.0.{number}") for number in (1, 2)]
    two = Host(devices=tuple(cpus), clustered=True, packages={"verl": "0.9.1"})
    (stage,) = load(small + WARMUP, overrides=args("ranks: 4, nodes: 2"), host=two).spec.stages
    assert stage.trainer.engine_args["nodes"] == 2
    for text, host, said in (
        ("ranks: 2, nodes: 2", ON_CPU, "is 2, but workers run only on this machine"),
        ("ranks: 3, nodes: 2", two, "is 2, but the trainer has 3 ranks, which it does not divide"),
        ("nodes: 2", two, "is 2, but the trainer has no ranks"),
        ("ranks: 3, nodes: 0", two, "trainer.engine_args.nodes: is "),
    ):
        (issue,) = errors(small + WARMUP, overrides=args(text), host=host)
        assert "trainer.engine_args.nodes" in issue
        assert said in issue


def test_an_engine_beyond_one_node_is_refused_with_the_numbers(errors: Errors) -> None:
    two = gpus(8, "10.0.0.1", vllm="0.31.0")
    far = tuple(msgspec.structs.replace(each, node=f"10.0.0.{each.index // 4}") for each in two.devices)
    rollout = ["explorer.rollout_model.engine_type=vllm", "explorer.rollout_model.tensor_parallel_size=6"]
    (text,) = errors(overrides=rollout, host=msgspec.structs.replace(two, devices=far))
    assert "tensor_parallel_size: the engine needs 6 GPUs, but no node has more than 4" in text
    (text,) = errors(
        overrides=["explorer.rollout_model.engine_type=vllm"], host=msgspec.structs.replace(two, devices=far)
    )
    assert "the trainer needs 7 GPUs in whole nodes, but a node has 4" in text
