"""What is written where nothing has a use for it is named by its whole path, with the reason."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rftd.daemon.config.loading import Submission

Load = Callable[..., Submission]
Errors = Callable[..., list[str]]
BUFFER = "buffer.trainer_input.experience_buffer"
OPTIMIZER = "algorithm.optimizer"
ROWS = "experiences come from explorers, not from a dataset"
HELD_OUT = "buffer.explorer_input.eval_tasksets=[{path: /e.jsonl, default_workflow_type: math_workflow}]"
FREE = "synchronizer={sync_method: checkpoint, sync_style: fully_async}"


def _idle(submission: Submission) -> dict[str, str]:
    pairs = (text.partition(" has no effect: ") for text in submission.spec.warnings)
    return {place: why for place, between, why in pairs if between}


@pytest.mark.parametrize(
    ("override", "why"),
    [
        (f"{BUFFER}.limit_rows=3", ROWS),
        (f"{BUFFER}.split=test", ROWS),
        (f"{BUFFER}.subset_name=main", ROWS),
        (f"{BUFFER}.schema_type=sft", ROWS),
        (f"{BUFFER}.path=/x.jsonl", "the log stores every experience"),
        ("model.tinker.rank=8", "model.tinker.enable is false"),
        ("model.tinker.train_mlp=false", "model.tinker.enable is false"),
        ("model.external_model.model_name=m", "model.external_model.enable is false"),
        ("explorer.proxy_port=81", "only mode serve answers clients"),
        ("explorer.listen_address=0.0.0.0", "only mode serve answers clients"),
        ("explorer.min_running_model_num=2", "only mode serve answers clients"),
        ("explorer.dynamic_timeout.ratio=2.5", "explorer.dynamic_timeout.enable is false"),
        ("explorer.straggler_reissue.ratio=2.5", "explorer.straggler_reissue.enable is false"),
        ("explorer.over_rollout.wait_after_min=5", "explorer.over_rollout.ratio is 0"),
        ("explorer.max_inflight_batches=5", "wait for scheduled weights"),
        ("algorithm.loss_scale_factor=5", "only used with loss_agg_mode seq-mean-token-sum-norm"),
        ("synchronizer.memory_dir=/dev/shm", "only used with sync_method memory"),
        (f"{OPTIMIZER}.min_lr_ratio=0.5", "lr_scheduler_type is constant"),
        ("explorer.eval_interval=5", "there are no eval_tasksets"),
        ("cluster.node_num=2", "only used together with cluster.gpu_per_node"),
        ("trainer.critic_warmup=2", "the algorithm has no critic"),
        ("trainer.use_dynamic_bsz=false", "only used by verl, and torch trains"),
        ("buffer.explorer_input.default_workflow_type=math_workflow", "each taskset sets it"),
    ],
)
def test_a_field_that_nothing_looks_at_is_named_with_the_reason(load: Load, override: str, why: str) -> None:
    before = load()
    after = load(overrides=[override])
    place = override.partition("=")[0]
    assert why in _idle(after)[place]
    assert _idle(after).keys() - _idle(before).keys() == {place}


def test_whole_sections_are_named_once(load: Load) -> None:
    said = _idle(load(overrides=[f"{BUFFER}.format={{prompt_key: q, response_key: a}}"]))
    assert said == {f"{BUFFER}.format": ROWS}


@pytest.mark.parametrize(
    ("overrides", "place", "why"),
    [
        ([f"{OPTIMIZER}={{optimizer_type: sgd, betas: [0.5, 0.9]}}"], f"{OPTIMIZER}.betas", "optimizer_type is sgd"),
        ([f"{OPTIMIZER}={{optimizer_type: sgd, eps: 1.0e-6}}"], f"{OPTIMIZER}.eps", "optimizer_type is sgd"),
        (
            [f"{OPTIMIZER}={{lr_warmup_steps: 2, lr_warmup_steps_ratio: 0.5}}"],
            f"{OPTIMIZER}.lr_warmup_steps_ratio",
            "lr_warmup_steps is set",
        ),
        ([f"{OPTIMIZER}.clip_grad=1.0", "trainer.grad_clip=0.5"], f"{OPTIMIZER}.clip_grad", "trainer.grad_clip is"),
        ([FREE, "synchronizer.sync_offset=2"], "synchronizer.sync_offset", "fully_async explorers never stop"),
        (["algorithm.rollout_correction.loss_type=reinforce"], "algorithm.rollout_correction.loss_type", "bypass_mode"),
    ],
)
def test_a_field_that_another_one_silences_is_named(load: Load, overrides: list[str], place: str, why: str) -> None:
    assert why in _idle(load(overrides=overrides))[place]


@pytest.mark.parametrize(
    "overrides",
    [
        [f"{OPTIMIZER}.clip_grad=0.5", "trainer.grad_clip=0.5"],
        [f"{BUFFER}.schema_type=experience"],
        ["algorithm.loss_agg_mode=seq-mean-token-sum-norm", "algorithm.loss_scale_factor=5"],
        ["explorer.dynamic_timeout={enable: true, ratio: 2.5}"],
        [FREE, "explorer.max_inflight_batches=5"],
        [f"{OPTIMIZER}={{lr_scheduler_type: cosine, min_lr_ratio: 0.5}}"],
        # Defaults that are written out ask for nothing.
        ["explorer={proxy_port: 8010, dynamic_timeout: {ratio: 3.0}, max_inflight_batches: 2, eval_interval: 100}"],
        [HELD_OUT, "explorer.eval_interval=5"],
    ],
)
def test_what_acts_or_asks_for_nothing_is_not_spoken_of(load: Load, overrides: list[str]) -> None:
    assert _idle(load(overrides=overrides)) == {}


def test_what_a_training_would_need_is_named_where_nothing_is_trained(load: Load) -> None:
    given = [
        *("mode=bench", HELD_OUT, "trainer.save_interval=5", "trainer.grad_clip=0.5", "synchronizer.sync_interval=4"),
        *(f"{OPTIMIZER}.lr=0.1", "buffer.train_batch_size=16", f"{BUFFER}.capacity=99"),
    ]
    said = _idle(load(overrides=given))
    for place in ("trainer.save_interval", "trainer.grad_clip", "synchronizer", "algorithm", "buffer.train_batch_size"):
        assert said[place] == "nothing is trained with mode bench"
    assert "buffer.trainer_input" in said
    assert said["buffer.total_steps"] == "mode bench answers whole tasksets"


def test_what_is_only_collected_is_not_trained(load: Load) -> None:
    for mode in ("explore", "serve"):
        given = [f"mode={mode}", "explorer.collect_only=true", "trainer.save_interval=5"]
        assert _idle(load(overrides=given))["trainer.save_interval"] == "nothing is trained with explorer.collect_only"


STAGES = """
stages:
- stage_name: warm
  mode: train
  algorithm: {algorithm_type: sft}
  buffer: {train_batch_size: 4, trainer_input: {experience_buffer: {path: /rows.jsonl, split: dev}}}
  explorer: {max_timeout: 9}
- stage_name: rft
  algorithm: {optimizer: {min_lr_ratio: 0.5}}
"""


def test_a_stage_is_told_of_what_it_writes_and_the_file_of_what_no_stage_uses(load: Load, small: str) -> None:
    given = ["explorer.max_timeout=8", f"{BUFFER}.subset_name=main", f"{BUFFER}.path=/x", f"{BUFFER}.capacity=99"]
    assert _idle(load(small + STAGES, [*given, "model.tinker.rank=8"])) == {
        "stages[0].explorer": "the stage trains on rows, without explorers",
        "stages[1].algorithm.optimizer.min_lr_ratio": "lr_scheduler_type is constant",
        # The first stage has a path of its own, and the other one none; the subset is the first one's.
        f"{BUFFER}.path": "the log stores every experience",
        "model.tinker.rank": "model.tinker.enable is false",
    }


def test_two_services_that_would_answer_contradict_each_other(errors: Errors) -> None:
    texts = errors(overrides=["model.tinker={enable: true, base_model: m}", "model.external_model.enable=true"])
    assert any("model.external_model.enable" in text and "so is model.tinker.enable" in text for text in texts)
