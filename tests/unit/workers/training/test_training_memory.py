"""The memory that training takes is known before anything is loaded, and refused with the arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from rftd.ops.errors import ConfigError, DeviceMemoryError
from rftd.streams.spec.sections import Optimizer, Synchronizer
from rftd.streams.spec.spec import ExperimentSpec, LoraSpec, RolloutSpec, StageSpec, TasksetSpec, TrainerSpec
from rftd.workers.devices import device_memory
from rftd.workers.devices.device_memory import Need, check_memory, elements_of, free_on, shown
from rftd.workers.devices.host import ANY_HOST, Device, Host
from rftd.workers.engines.torch.trainer.definition import ENGINE
from rftd.workers.engines.torch.trainer.engine import TorchTrainerEngine
from rftd.workers.hosts.ray.launcher import host_of as host_of_cluster
from rftd.workers.hosts.ray.messages import ClusterSeen, RayNode
from rftd.workers.learning.engine import TrainBatch
from rftd.workers.learning.engine_registry import check_models, check_room
from rftd.workers.learning.memory_needs import RANK_PROCESS, training_needs

MakeStage = Callable[..., StageSpec]
MakeBatch = Callable[..., TrainBatch]


def opened(folder: Path, stage: StageSpec) -> TorchTrainerEngine:
    engine = TorchTrainerEngine(threads=1)
    spec = ExperimentSpec(project="p", name="n", job_dir="/nowhere", stages=(stage,), deterministic=True, config={})
    engine.open(spec, str(folder))
    return engine


def size_of(tensors: Iterable[torch.Tensor | None]) -> int:
    """The bytes of tensors, each memory once; steps of an optimizer, which are single numbers, are left out."""
    each = {tensor.data_ptr(): tensor.nbytes for tensor in tensors if tensor is not None and tensor.dim()}
    return sum(each.values())


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_what_is_said_is_what_a_step_leaves_there(
    tiny_model: Path, make_stage: MakeStage, make_batch: MakeBatch, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = make_stage(kl_coef=0.1, optimizer=Optimizer(optimizer_type=kind, lr=1e-3, decay_all=True))
    said = {need.what: need.size_bytes for need in training_needs(stage, tiny_model)}
    engine = opened(tiny_model, stage)
    engine.begin_stage(stage)
    gradients: list[int] = []
    begun = engine._learner
    assert begun is not None
    optimizer = begun.optimizer.inner
    step = optimizer.step

    def stepped() -> None:
        gradients.append(size_of(value.grad for value in engine._open_policy.parameters().values()))
        step()

    monkeypatch.setattr(optimizer, "step", stepped)
    engine.train(make_batch())
    parameters = size_of(engine._model.parameters())
    assert said["weights"] == parameters == 4 * elements_of(tiny_model)
    assert [said["gradients"]] == gradients
    moments = size_of(value for state in optimizer.state.values() for value in state.values())
    assert said.get("the optimizer's moments", 0) == moments == (2 * parameters if kind == "adamw" else 0)
    assert begun.reference is not None
    assert said["the reference"] == size_of(begun.reference.tensors().values())
    engine.close()


def test_a_device_without_room_is_refused_before_the_model_is_read(
    tiny_model: Path, make_stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = make_stage()
    needed = sum(need.size_bytes for need in training_needs(stage, tiny_model))
    monkeypatch.setattr(device_memory, "free_on", lambda device: needed - 1)
    read = torch.nn.Module.__init__
    monkeypatch.setattr(torch.nn.Module, "__init__", lambda *_, **__: pytest.fail("a model was made"))
    with pytest.raises(DeviceMemoryError) as refused:
        opened(tiny_model, stage)
    monkeypatch.setattr(torch.nn.Module, "__init__", read)
    said = str(refused.value)
    weights = shown(4 * elements_of(tiny_model))
    assert f"(weights {weights} + gradients {weights} + the optimizer's moments" in said
    assert "activations of 1024 tokens" in said
    assert "cpu has" in said
    assert str(tiny_model) in said
    monkeypatch.setattr(device_memory, "free_on", lambda device: needed)
    opened(tiny_model, stage).close()


def test_an_adapter_and_half_precision_take_less(tiny_model: Path, make_stage: MakeStage) -> None:
    stage = make_stage(kl_coef=0.1)
    lora = LoraSpec(rank=4, alpha=8.0)
    less = msgspec.structs.replace(stage, model=msgspec.structs.replace(stage.model, lora=lora))
    whole = {need.what: need.size_bytes for need in training_needs(stage, tiny_model)}
    adapted = {need.what: need.size_bytes for need in training_needs(less, tiny_model)}
    assert adapted["weights"] == whole["weights"]
    assert adapted["gradients"] == 0 == adapted["the reference"]
    half = {need.what: need.size_bytes for need in training_needs(make_stage(dtype="bfloat16"), tiny_model)}
    assert 2 * half["activations of 1024 tokens"] == whole["activations of 1024 tokens"] > 0


def test_versions_that_stay_on_the_device_until_they_are_retired_are_counted(
    tiny_model: Path, make_stage: MakeStage
) -> None:
    assert ENGINE.needs is not None
    needs_of = ENGINE.needs

    def held(**fields: object) -> tuple[str, int]:
        stage = msgspec.structs.replace(make_stage(), **{"synchronizer": Synchronizer(sync_method="nccl"), **fields})
        return needs_of(stage, tiny_model, 1)[-1]

    one = 4 * elements_of(tiny_model)
    # The newest, and those that explorers may be told to begin on.
    assert held() == ("5 published versions", 5 * one)
    assert held(total_steps=3) == ("3 published versions", 3 * one)
    assert held(synchronizer=Synchronizer(sync_method="nccl", sync_interval=3)) == ("7 published versions", 7 * one)
    evals = (TasksetSpec(name="held-out", path="held-out"),)
    assert held(evals=evals, eval_interval=2) == ("3 published versions", 3 * one), "the others are files"
    assert held(synchronizer=Synchronizer(sync_method="nccl", sync_style="explorer_driven")) == (
        "1 published versions",
        one,
    )
    assert held(rollout=RolloutSpec(dtype="bfloat16")) == ("5 published versions", 5 * one // 2)
    assert held(synchronizer=Synchronizer(sync_method="memory"))[1] == 0
    assert held(trainer=TrainerSpec(engine_args={"ranks": 2}))[1] == 0


def test_a_control_group_is_a_limit_and_cached_files_are_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_memory, "_GROUP", tmp_path)
    assert free_on("cpu") > 1_000_000, "without a group the machine's memory counts"
    (tmp_path / "memory.current").write_text("700000\n")
    (tmp_path / "memory.stat").write_text("anon 600000\ninactive_file 50000\n")
    (tmp_path / "memory.max").write_text("1000000\n")
    assert free_on("cpu") == 350_000
    (tmp_path / "memory.max").write_text("max\n")
    assert free_on("cpu") > 1_000_000
    with pytest.raises(DeviceMemoryError, match=r"1 TiB are needed at least \(weights 1 TiB\)"):
        check_memory([Need("weights", 1 << 40)], "cpu", where="m", fix="f")


def on_ranks(stage: StageSpec, folder: Path, engine: str, gpus: int, **arguments: Any) -> StageSpec:
    trainer = msgspec.structs.replace(stage.trainer, engine=engine, devices=gpus, engine_args=arguments)
    model = msgspec.structs.replace(stage.model, path=str(folder))
    return msgspec.structs.replace(stage, trainer=trainer, model=model)


def host_of(gpus: int, memory_bytes: int) -> Host:
    gpu = Device(kind="cuda", index=0, name="NVIDIA H100", memory_bytes=memory_bytes, visible="0")
    cpu = Device(kind="cpu", index=0, name="8 processors", memory_bytes=memory_bytes)
    return Host(devices=(cpu, *(msgspec.structs.replace(gpu, index=each) for each in range(gpus))))


def test_what_no_device_can_hold_is_refused_at_submission(tiny_model: Path, make_stage: MakeStage) -> None:
    """torch's ranks hold everything each, verl's a part of it; what waits on the host is not counted."""
    stage = make_stage(kl_coef=0.1)
    whole = sum(need.size_bytes for need in training_needs(stage, tiny_model))
    halves = sum(need.size_bytes for need in training_needs(stage, tiny_model, spread=2))
    assert halves < whole
    torch_stage = on_ranks(stage, tiny_model, "torch", 2, device="cuda", ranks=2)
    check_room(torch_stage, host_of(2, whole))
    with pytest.raises(ConfigError) as refused:
        check_room(torch_stage, host_of(2, whole - 1))
    said = str(refused.value)
    assert f"{shown(whole)} are needed at least on each of 2 GPUs (weights " in said
    assert f"and NVIDIA H100 has {shown(whole - 1)}" in said
    assert refused.value.field == "model.model_path"
    verl = on_ranks(stage, tiny_model, "verl", 2)
    check_room(verl, host_of(2, halves))
    with pytest.raises(ConfigError, match="on each of 2 GPUs"):
        check_room(verl, host_of(2, halves - 1))
    check_room(on_ranks(stage, tiny_model, "verl", 2, param_offload=True), host_of(2, halves - 1))
    on_cpu = on_ranks(stage, tiny_model, "torch", 0, ranks=3)
    each = whole + RANK_PROCESS.size_bytes
    check_room(on_cpu, host_of(0, 3 * each))
    with pytest.raises(ConfigError, match=r"by each of 3 ranks .* \+ its process 128 MiB\), and 8 processors has"):
        check_room(on_cpu, host_of(0, 3 * each - 1))
    check_room(on_cpu, ANY_HOST)
    check_room(msgspec.structs.replace(on_cpu, kind="explore"), host_of(0, 1))


def test_a_cluster_is_held_against_its_largest_node_once_all_have_said_their_memory(
    tiny_model: Path, make_stage: MakeStage
) -> None:
    stage = on_ranks(make_stage(), tiny_model, "torch", 2, device="cuda", ranks=2)
    needed = sum(need.size_bytes for need in training_needs(stage, tiny_model))

    def cluster(*memory_bytes: int) -> Host:
        nodes = (
            RayNode(
                id=f"{number}",
                address=f"10.0.0.{number}",
                gpus=2,
                free_gpus=2,
                cpus=4,
                free_cpus=4,
                memory_bytes=each,
                gpu_memory_bytes=each,
            )
            for number, each in enumerate(memory_bytes)
        )
        return host_of_cluster(ClusterSeen(nodes=tuple(nodes)), "auto")

    check_room(stage, cluster(needed, 1))
    check_room(stage, cluster(1, 0))
    with pytest.raises(ConfigError, match=r"on each of 2 GPUs .*, and GPU 0 of 10\.0\.0\.1 has"):
        check_room(stage, cluster(1, needed - 1))
    on_cpu = on_ranks(stage, tiny_model, "torch", 0, device="cpu")
    bare = msgspec.structs.replace(cluster(1, needed - 1), devices=cluster(1, needed - 1).devices[::3])
    with pytest.raises(ConfigError, match=r"4 CPUs of 10\.0\.0\.1 has"):
        check_room(on_cpu, bare)


def test_ranks_that_cannot_share_a_models_heads_are_refused_with_the_numbers(
    tiny_model: Path, make_stage: MakeStage
) -> None:
    for ranks in (1, 2):
        check_models(on_ranks(make_stage(), tiny_model, "verl", ranks, ulysses_sequence_parallel_size=ranks))
    with pytest.raises(ConfigError) as refused:
        check_models(on_ranks(make_stage(), tiny_model, "verl", 3, ulysses_sequence_parallel_size=3))
    assert "3 ranks share each sequence, and cannot share 2 attention heads" in refused.value.what
    assert (refused.value.field, refused.value.fix) == ("trainer.ulysses_sequence_parallel_size", "write 1 or 2")
