"""The effective experiment says all that the specification says, as a file that resolves to the same."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import yaml
from synthetic.daemon.config_fields import schema_fields

from rftd.daemon.config.effective.experiment import effective_config
from rftd.daemon.config.effective.origins import origins
from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.loading import Submission, check_config, load_file, load_text
from rftd.daemon.config.yaml_text import yaml_text
from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.devices.host import ANY_HOST, Device, Host
from rftd.workers.learning.algorithms.registry import ALGORITHMS, lookup

ROOT: Final = Path(__file__).parents[4]
NO_GPU: Final = Host(name="laptop", no_gpu="nvidia-smi not found", packages={"tinker": "0.38"})
GPUS: Final = Host(
    name="node",
    devices=tuple(Device(kind="cuda", index=each, name="G", memory_bytes=8 * 10**10) for each in range(8)),
    packages={"vllm": "0.31", "verl": "0.9", "flash-attn": "2", "tinker": "0.38"},
)
ENVIRON: Final = {
    "MODEL_PATH": "/models/m",
    "TRINITY_MODEL_PATH": "/models/m",
    "TRINITY_TASKSET_PATH": "/data/tasks",
    "TRINITY_SFT_DATASET_PATH": "/data/aux",
    "TRINITY_DATASET_PATH": "/data/sft",
}
FILES: Final = sorted([*(ROOT / "examples").glob("*.yaml"), ROOT / "tests" / "golden" / "config" / "guide.yaml"])
SMALL: Final = """
name: n
checkpoint_root_dir: /c
algorithm: {algorithm_type: grpo, repeat_times: 4}
model: {model_path: /m, max_model_len: 64}
buffer:
  batch_size: 2
  total_steps: 6
  explorer_input:
    taskset: &tasks {path: /t.jsonl, default_workflow_type: math_boxed_workflow}
    eval_tasksets: [*tasks]
explorer: {rollout_model: {engine_num: 2}}
synchronizer: {sync_method: checkpoint, sync_style: fully_async}
"""
_SERVICE: Final = "{engine_type: external, model_name: m, base_url: http://a/v1, api_key: {env: KEY}}"
_REPLAY: Final = "buffer.trainer_input.experience_buffer.replay_buffer"
_CORRECTION: Final = "{rollout_is: token, rollout_rs: token_k1, rollout_rs_threshold: 2.0, corrections: [{kind: opsm}]}"
VARIANTS: Final[Mapping[str, tuple[str, ...]]] = {
    "serve": ("mode=serve",),
    "colocate": ("mode=colocate", "explorer.rollout_model.engine_num=1"),
    "explore": ("mode=explore",),
    "pipeline": ("data_processor.experience_pipeline.operators=[{name: reward_filter, args: {threshold: 0.5}}]",),
    "task pipeline": (
        "data_processor.task_pipeline={operators: [{name: text_length_filter}], priority_weights: {quality: 2.0}, "
        "inputs: [/in.jsonl], output: {path: /out.jsonl}, target_fields: [question], top_k: 5, num_process: 2}",
    ),
    "data juicer": (
        "data_processor.task_pipeline={operators: [{name: llm_difficulty_score_filter, args: {min_score: 0.1}}]}",
        "service.data_juicer={auto_start: true, port: 5005, python: /p/bin/python, release: 1.6.1}",
    ),
    "data juicer elsewhere": (
        "data_processor.experience_pipeline.operators=[{name: data_juicer, args: {operators: [{a: {}}]}}]",
        "service.data_juicer={server_url: 'http://h:1'}",
    ),
    "algorithm of a taskset": (
        "buffer.explorer_input.taskset.algorithm_type=dapo",
        "buffer.explorer_input.taskset.advantage_fn_args={mask_truncated: true}",
    ),
    "limits": ("limits={hours: 9, cost: 5, accelerator_hour_price: 1}",),
    "source": (
        "sources={mine.py: 'def f(truth): return 1'}",
        "buffer.explorer_input.taskset.default_reward_fn_type=mine.py:f",
    ),
    "collect": ("mode=explore", "explorer.collect_only=true"),
    "bench": ("mode=bench",),
    "service": (
        "mode=bench",
        "model.max_response_tokens=8",
        "model.external_model={enable: true, model_name: m}",
    ),
    "tinker": ("model.tinker={enable: true, base_model: a/b, seed: 3}", "algorithm.kl_loss_fn=none"),
    "lora": ("model.lora_configs=[{name: a, target_modules: [q_proj]}]",),
    "windows": (
        "trainer.max_idle_steps=7",
        "synchronizer={sync_style: trainer_driven, sync_interval: 4, sync_method: memory}",
        "explorer.max_inflight_batches=9",
        "explorer.concurrent_mode=asynchronous",
        "explorer.over_rollout.ratio=0.5",
        "explorer.straggler_reissue.enable=true",
        "explorer.max_repeat_times_per_runner=2",
    ),
    "fixed": ("synchronizer={sync_interval: 2, sync_offset: 1}",),
    "deterministic": ("synchronizer={sync_method: memory}", "deterministic=true"),
    "reuse": (f"{_REPLAY}.enable=true", f"{_REPLAY}.reuse_cooldown_time=3"),
    "priorities": (f"{_REPLAY}.enable=true", "policy={kind: hard_bound, max_staleness: 9}"),
    "areal": ("policy={kind: areal}", "algorithm.sample_strategy=staleness_control"),
    "correction": (f"algorithm.rollout_correction={_CORRECTION}",),
    "recomputed": ("algorithm.bypass_old_logprobs=false",),
    "auxiliary": (f"explorer.auxiliary_models=[{{model_path: /a, engine_num: 2, enable_thinking: true}}, {_SERVICE}]",),
    "critic": ("algorithm={algorithm_type: ppo}", "trainer.trainer_config={critic: {ppo_epochs: 2}}"),
    "verl": ("trainer.trainer_type=verl", "trainer.ulysses_sequence_parallel_size=2", "cluster.node_num=1"),
    "variables": ("explorer.env_vars={TOKEN: {env: TOKEN}}", "labels={a: '1e-6', b: 'yes'}"),
    "template": ("model.custom_chat_template=A", "explorer.rollout_model.chat_template='{{ B }}'"),
    "trackers": (
        "monitor={monitor_type: tensorboard, also: [jsonl], single_run: true, samples: 3, sample_interval: 5}",
    ),
    "decisions": (
        "buffer.explorer_input.eval_tasksets=[{path: /held.jsonl, name: held}]",
        "explorer.eval_interval=1",
        "trainer.best_checkpoint={metric: score, mode: min, keep: 2}",
        "trainer.early_stop={metric: score, patience: 2, min_delta: 0.1, bound: 0.9}",
        "trainer.rules=[{falls_by: 0.2}, {rises_by: 0.5, then: stop}, {below: 0.1}, {above: 3, metric: score}]",
    ),
    "epochs": ("buffer.total_steps=null", "buffer.total_epochs=3", "group=g"),
}

_MODEL: Final = "explorer.auxiliary_models[0]"
ELSEWHERE: Final = (
    # In `old_logprobs` and `corrections`, which say all that verl's fields can.
    "algorithm.rollout_correction.",
    "model.tinker.base_url",  # where it is written
    "buffer.explorer_input.tasksets[0]",  # in `taskset`
    "buffer.explorer_input.default_",  # in each taskset
    *(f"buffer.explorer_input.{name}" for name in ("system_prompt", "reply_prefix")),  # in each taskset's `format`
    "buffer.trainer_input.auxiliary_buffers.NAME",  # under a name of the user's
    *(f"explorer.rollout_model.{name}" for name in ("temperature", "top_p", "top_k", "repetition_penalty")),
    "explorer.rollout_model.ignore_eos",  # as these, in `rollout_args` of each taskset
    "explorer.rollout_model.enable_thinking",  # where it is written
    "explorer.rollout_model.enable_history",  # every answer is kept without it
    *(f"{_MODEL}.{name}" for name in ("data_parallel_size", "pipeline_parallel_size", "enable_expert_parallel")),
    *(f"{_MODEL}.{name}" for name in ("enforce_eager", "enable_prefix_caching", "enable_chunked_prefill")),
    *(f"{_MODEL}.{name}" for name in ("gpu_memory_utilization", "max_num_batched_tokens", "start_timeout")),
    "explorer.dynamic_timeout.ratio",  # where it is enabled
    "trainer.total_steps",  # in `buffer`
    "trainer.ulysses_sequence_parallel_size",  # in `engine_args`
    *(f"trainer.{name}" for name in ("use_dynamic_bsz", "use_remove_padding", "save_strategy")),
    *(f"trainer.{name}" for name in ("param_offload", "optimizer_offload", "trainer_strategy", "megatron.")),
    "trainer.trainer_config_path",  # the client reads it
)
"""Fields that the view need not have, for another one says what they say."""


def _load(text: str, host: Host, *overrides: str) -> Submission:
    return load_text(text, "f.yaml", overrides=overrides, environ=ENVIRON, cwd=Path("/home/user"), host=host)


def _but_arguments(value: Any) -> Any:
    """Plain data without arguments, which the effective experiment writes out."""
    if isinstance(value, dict):
        return {key: None if key.endswith("args") else _but_arguments(each) for key, each in value.items()}
    return [_but_arguments(each) for each in value] if isinstance(value, list | tuple) else value


def _compared(spec: ExperimentSpec) -> Any:
    # The view writes the micro-batch out that the file leaves open.
    stages = tuple(
        msgspec.structs.replace(stage, trainer=msgspec.structs.replace(stage.trainer, micro_batch_written=True))
        for stage in spec.stages
    )
    return _but_arguments(msgspec.to_builtins(msgspec.structs.replace(spec, stages=stages, config={}, warnings=())))


def _goes_round(submission: Submission, host: Host) -> None:
    view = effective_config(submission.spec)
    again = load_text(yaml_text(view), "shown.yaml", environ={}, cwd=Path("/elsewhere"), host=host)
    assert _compared(again.spec) == _compared(submission.spec)
    # Arguments too: what they are with all defaults is said by the second view.
    assert effective_config(again.spec) == view
    assert effective_config(check_config(json.loads(json.dumps(view)), host=host)) == view
    idle = [each for each in again.warnings if "has no effect" in each and each not in submission.warnings]
    # What a stage inherits and does not use stands in each stage here.
    assert {each.split(" ")[0] for each in idle} <= {"derived", "stages[0].algorithm.optimizer.min_lr_ratio"}


@pytest.mark.parametrize("host", [NO_GPU, ANY_HOST, GPUS], ids=["no GPU", "any", "8 GPUs"])
@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_every_file_resolves_to_the_same_again(file: Path, host: Host) -> None:
    overrides = ["data_processor={}", *(("cluster={}",) if host is GPUS else ())]
    if host is NO_GPU and file.stem == "guide":
        overrides.append("explorer.rollout_model.engine_type=torch")
    loaded = load_file(file, overrides=overrides, environ=ENVIRON, cwd=Path("/home/user"), host=host)
    _goes_round(loaded, host)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_kind_of_stage_resolves_to_the_same_again(variant: str) -> None:
    _goes_round(_load(SMALL, NO_GPU, *VARIANTS[variant]), NO_GPU)


def test_gpus_are_split_as_before() -> None:
    overrides = ("cluster={node_num: 1, gpu_per_node: 8}", "explorer.rollout_model.tensor_parallel_size=2")
    loaded = _load(SMALL, GPUS, *overrides)
    _goes_round(loaded, GPUS)
    assert effective_config(loaded.spec)["derived"]["stages"]["main"]["gpus"] == {
        "total_gpu_num": 8,
        "explorer_num": 2,
        "gpus_per_explorer": 2,
        "rollout_gpu_num": 4,
        "trainer_gpu_num": 4,
        "trainer_node_num": 1,
        "trainer_gpu_num_per_node": 4,
    }


@pytest.mark.parametrize("kind", ALGORITHMS.ours())
def test_every_algorithm_writes_all_its_arguments(kind: str) -> None:
    rows = "{experience_buffer: {path: /rows.jsonl}, auxiliary_buffers: {sft_dataset: {path: /rows.jsonl}}}"
    overrides = [f"algorithm={{algorithm_type: {kind}}}", f"buffer.trainer_input={rows}", "buffer.train_batch_size=16"]
    definition = lookup(kind)
    if not definition.needs.rollouts:
        overrides.append("mode=train")
    teacher = "explorer.auxiliary_models=[{model_path: /teacher}]"
    loaded = _load(SMALL, NO_GPU, *overrides, teacher)
    _goes_round(loaded, NO_GPU)
    section = effective_config(loaded.spec)["algorithm"]
    assert definition.policy_loss_args.items() <= section["policy_loss_fn_args"].items()
    assert definition.advantage_args.items() <= section["advantage_fn_args"].items()


def _fields(node: Any) -> Iterator[FieldPath]:
    pairs = node.items() if isinstance(node, dict) else ((0, item) for item in node) if isinstance(node, list) else ()
    for key, value in pairs:
        yield (key,)
        yield from ((key, *below) for below in _fields(value))


def test_every_field_that_acts_is_shown_or_said_in_another_field() -> None:
    """A field that comes to the schema comes to the view, or here."""
    shown: set[FieldPath] = set()
    for overrides in VARIANTS.values():
        shown |= set(_fields(effective_config(_load(SMALL, NO_GPU, *overrides).spec)))
    for file in FILES:
        loaded = load_file(file, overrides=["data_processor={}"], environ=ENVIRON, cwd=Path("/home/user"))
        view = effective_config(loaded.spec)
        for each in (view, *view.get("stages", ())):
            shown |= set(_fields(each))
    acting = {show(field.path) for field in schema_fields() if field.mark.effect == "acts" and not field.kind}
    missing = acting - {show(path) for path in shown}
    assert sorted(name for name in missing if not name.startswith(ELSEWHERE)) == []


def test_two_stages_stand_in_stages_each_complete() -> None:
    stages = """
stages:
- stage_name: warm
  mode: train
  algorithm: {algorithm_type: sft}
  buffer: {train_batch_size: 4, trainer_input: {experience_buffer: {path: /rows.jsonl}}}
- stage_name: rft
  trainer: {save_interval: 3}
"""
    loaded = _load(SMALL + stages, NO_GPU)
    _goes_round(loaded, NO_GPU)
    view = effective_config(loaded.spec)
    warm, rft = view["stages"]
    assert (warm["algorithm"]["algorithm_type"], rft["algorithm"]["algorithm_type"]) == ("sft", "grpo")
    assert "explorer" not in warm
    assert rft["trainer"]["save_interval"] == 3
    assert view["derived"]["stages"]["rft"]["checkpoints"] == "/c/Trinity-RFT/n/rft/global_step_N"


def test_origins_name_lines_flags_variables_and_defaults() -> None:
    text = SMALL.replace("model_path: /m", "model_path: '${oc.env:MODEL_PATH}'").replace("checkpoint,", "nccl,")
    loaded = _load(text, NO_GPU, "algorithm.optimizer.lr=1e-4")
    view = effective_config(loaded.spec)
    found = {show(path): said for path, said in origins(view, loaded.config, loaded.source).items()}
    assert found["buffer.batch_size"] == "f.yaml:7"
    assert found["algorithm.optimizer.lr"] == "-s algorithm.optimizer.lr"
    assert found["model.model_path"] == "environment MODEL_PATH, f.yaml:5"
    assert found["synchronizer.sync_method"] == "f.yaml:13 says nccl"
    assert found["algorithm.policy_loss_fn"] == "default of grpo"
    assert found["algorithm.policy_loss_fn_args.clip_range"] == "default of ppo in grpo"
    assert found["explorer.rollout_model.extra_engine_args.cuda_graphs"] == "default of torch"
    assert found["buffer.train_batch_size"] == "derived"
    assert found["explorer.max_timeout"] == "default"
    assert found["policy.max_staleness"] == "derived"
    assert found["derived"] == "follows from the rest"
    # A comment for every line that has a value.
    lines = yaml_text(view, origins(view, loaded.config, loaded.source)).partition("derived:")[0].splitlines()
    assert [line for line in lines if "  # " not in line and not line.rstrip().endswith(":")] == []


@pytest.mark.parametrize("level", ["actor_rollout_ref: ", ""])
def test_the_origin_of_what_verls_tree_says_is_its_line_there(level: str) -> None:
    actor = "{optim: {lr: 2.0e-5,\n  warmup_style: cosine}, grad_clip: 0.25, checkpoint: {save_contents: [hf_model]}}"
    tree = f"{{{level}{{actor: {actor}}}}}" if level else f"{{actor: {actor}}}"
    text = SMALL + f"trainer:\n  trainer_config: {tree}\n"
    loaded = _load(text, NO_GPU)
    view = effective_config(loaded.spec)
    found = {show(path): said for path, said in origins(view, loaded.config, loaded.source).items()}
    line = next(number for number, line in enumerate(text.splitlines(), 1) if "2.0e-5" in line)
    assert view["algorithm"]["optimizer"]["lr"] == 2.0e-5
    assert found["algorithm.optimizer.lr"] == f"f.yaml:{line}"
    assert found["algorithm.optimizer.lr_scheduler_type"] == f"f.yaml:{line + 1}"
    assert found["trainer.grad_clip"] == f"f.yaml:{line + 1}"
    assert found["trainer.save_hf_checkpoint"] == f"f.yaml:{line + 1}"
    assert found["algorithm.optimizer.weight_decay"] == "default"


def test_one_device_that_is_taken_in_turns_is_no_sides_own() -> None:
    loaded = _load(SMALL, NO_GPU, "mode=colocate", "cluster={node_num: 1, gpu_per_node: 1}", "explorer={}")
    (stage,) = effective_config(loaded.spec)["derived"]["stages"].values()
    assert stage["gpus"] == {"total_gpu_num": 1, "explorer_num": 1, "taken_in_turns": True}


@pytest.mark.parametrize(
    "value", ["1e-6", "on", "null", "", "a: b", "a #b", "- x", "~", "0x1f", "two\nlines", "{a}", "'", '"', "a, b", "é"]
)
def test_text_is_read_back_as_it_was(value: str) -> None:
    tree = {"a": value, "b": [value, {"c": value}], "d": [value], "e": {value or "x": [[value], {}]}}
    text = yaml_text(tree)
    assert yaml.safe_load(text) == tree
    if "\n" not in value:  # no label has a line break
        assert load_text(SMALL + yaml_text({"labels": {"a": value}}), "f", environ={}).spec.labels == {"a": value}


def test_no_secret_is_shown() -> None:
    loaded = _load(SMALL, NO_GPU, "explorer.env_vars={HF_TOKEN: {env: HF_TOKEN}}")
    assert effective_config(loaded.spec)["explorer"]["env_vars"] == {"HF_TOKEN": {"env": "HF_TOKEN"}}


def test_the_derived_section_is_no_setting() -> None:
    submission = _load(SMALL, NO_GPU, "derived={steps: 9}")
    assert "derived has no effect: derived from the other sections; `rftd config show` prints it" in submission.warnings
