"""An optimizer that is written where veRL has it, below `trainer.trainer_config`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rftd.daemon.config.loading import Submission

Load = Callable[..., Submission]
Errors = Callable[..., list[str]]
ACTOR = "trainer.trainer_config.actor_rollout_ref.actor"
OPTIM = f"{ACTOR}.optim"


@pytest.mark.parametrize(
    ("places", "fields"),
    [
        (["optim.lr=1e-5"], ["algorithm.optimizer.lr=1e-5"]),
        (["optim.betas=[0.9, 0.95]"], ["algorithm.optimizer.betas=[0.9, 0.95]"]),
        (["optim.lr_warmup_steps=3"], ["algorithm.optimizer.lr_warmup_steps=3"]),
        (["optim.lr_warmup_steps_ratio=0.4"], ["algorithm.optimizer.lr_warmup_steps_ratio=0.4"]),
        (
            ["optim.warmup_style=cosine", "optim.min_lr_ratio=0.1"],
            ["algorithm.optimizer.lr_scheduler_type=cosine", "algorithm.optimizer.min_lr_ratio=0.1"],
        ),
        (["optim.lr_scheduler_type=cosine"], ["algorithm.optimizer.lr_scheduler_type=cosine"]),
        (["optim.optimizer=SGD"], ["algorithm.optimizer.optimizer_type=sgd"]),
        (["optim.weight_decay=0.2"], ["algorithm.optimizer.weight_decay=0.2"]),
        (["grad_clip=0.5"], ["trainer.grad_clip=0.5"]),
    ],
)
def test_a_key_of_verl_stands_for_the_field_that_is_not_written(
    load: Load, places: list[str], fields: list[str]
) -> None:
    in_tree = [f"{ACTOR}.{place}" for place in places]
    written = load(overrides=fields).spec.stages[0].algorithm.optimizer
    assert written != load().spec.stages[0].algorithm.optimizer
    assert load(overrides=in_tree).spec.stages[0].algorithm.optimizer == written
    assert load(overrides=[*in_tree, *fields]).spec.stages[0].algorithm.optimizer == written


@pytest.mark.parametrize(
    ("place", "field"),
    [
        (f"{OPTIM}.lr=1e-5", "algorithm.optimizer.lr=2e-5"),
        (f"{ACTOR}.grad_clip=0.5", "trainer.grad_clip=0.7"),
        (f"{ACTOR}.grad_clip=0.5", "algorithm.optimizer.clip_grad=0.7"),
        (f"{OPTIM}.warmup_style=cosine", "algorithm.optimizer.lr_scheduler_type=constant"),
    ],
)
def test_two_values_of_one_thing_are_refused(errors: Errors, place: str, field: str) -> None:
    (text,) = errors(overrides=[place, field])
    assert "(the same setting)" in text
    assert "keep one of the two" in text


def test_the_default_of_verl_gives_way_to_a_field_that_is_written(load: Load) -> None:
    in_tree = [f"{OPTIM}.lr=1e-6", f"{ACTOR}.grad_clip=1.0"]
    spec = load(overrides=[*in_tree, "algorithm.optimizer={lr: 3e-5, clip_grad: 0.4}"]).spec
    optimizer = spec.stages[0].algorithm.optimizer
    assert (optimizer.lr, optimizer.clip_grad) == (3e-5, 0.4)


@pytest.mark.parametrize("order", [1, -1])
def test_the_older_of_two_names_counts_where_the_newer_has_its_default(load: Load, order: int) -> None:
    in_tree = [f"{OPTIM}.warmup_style=cosine", f"{OPTIM}.lr_scheduler_type=constant"]
    spec = load(overrides=[*in_tree[::order], "algorithm.optimizer.min_lr_ratio=0.2"]).spec
    assert spec.stages[0].algorithm.optimizer.lr_scheduler_type == "cosine"
    assert not [text for text in spec.warnings if "min_lr_ratio" in text]


@pytest.mark.parametrize("place", ["optim.lr=7", "optim.betas=[0.9]", "optim.warmup_style=linear", "grad_clip=-1.0"])
def test_a_value_that_the_field_does_not_take_is_refused_where_it_stands(errors: Errors, place: str) -> None:
    (text,) = errors(overrides=[f"{ACTOR}.{place}"])
    assert f"{ACTOR}.{place.partition('=')[0]}" in text
    assert "which sets" in text


def test_a_stage_inherits_what_the_tree_says(load: Load) -> None:
    stages = "stages=[{stage_name: a}, {stage_name: b, trainer: {save_interval: 3}}]"
    spec = load(overrides=[f"{OPTIM}.lr=1e-5", stages]).spec
    assert [stage.algorithm.optimizer.lr for stage in spec.stages] == [1e-5, 1e-5]


@pytest.mark.parametrize("name", ["save_contents", "contents"])
@pytest.mark.parametrize(
    ("contents", "overrides", "saved", "says"),
    [
        ("[model, hf_model, optimizer, extra]", [], "always", ""),
        ("[hf_model]", [], "always", ""),
        ("[hf_model]", ["trainer.save_hf_checkpoint=never"], "never", "trainer.save_hf_checkpoint is never"),
        ("[model, optimizer, extra]", [], "last", ""),
        ("[model]", [], "last", "a checkpoint always holds everything needed for a restart"),
    ],
)
def test_a_whole_model_in_what_verl_saves_is_in_each_checkpoint(
    load: Load, name: str, contents: str, overrides: list[str], saved: str, says: str
) -> None:
    spec = load(overrides=[f"{ACTOR}.checkpoint.{name}={contents}", *overrides]).spec
    assert spec.stages[0].trainer.save_hf == saved
    said = [text for text in spec.warnings if f"checkpoint.{name} has no effect" in text]
    assert [says in text for text in said] == ([True] if says else [])
