"""veRL's asynchronous programs: their window is a policy, and their halves of the GPUs stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rftd.daemon.config.loading import load_text
from rftd.daemon.config.verl.importing import ImportedExperiment, import_tree
from rftd.workers.devices.host import ANY_HOST

Leaves = dict[str, Any]
Program = Callable[..., ImportedExperiment]
Flat = Callable[[str], Leaves]
FULLY = "verl.experimental.fully_async_policy.fully_async_main"
ONE_OFF = "recipe.one_step_off_policy.main_ppo"
BYPASS = "algorithm.rollout_correction.bypass_mode"
HALVES = ("trainer.nnodes=1", "trainer.n_gpus_per_node=4", "rollout.nnodes=1", "rollout.n_gpus_per_node=4")
GROUP = ("actor_rollout_ref.rollout.n=4", "actor_rollout_ref.actor.ppo_mini_batch_size=32", *HALVES)


def pacing(tree: Leaves) -> list[Any]:
    """What the synchronizer and the policy have."""
    sync = [tree[f"synchronizer.sync_{name}"] for name in ("style", "interval", "offset")]
    return [*sync, tree.get("policy.kind"), tree.get("policy.staleness_threshold")]


@pytest.mark.parametrize(
    ("name", "overrides", "expected"),
    [
        (FULLY, [], ["fully_async", 4, 0, "verl_window", 0.1]),
        (
            FULLY,
            ["async_training.staleness_threshold=0.5", "async_training.require_batches=4"],
            ["fully_async", 16, 0, "verl_window", 0.5],
        ),
        (
            FULLY,
            ["async_training.partial_rollout=False", "async_training.trigger_parameter_sync_step=2"],
            ["trainer_driven", 2, 0, "verl_window", 0.1],
        ),
        (FULLY, ["async_training.staleness_threshold=0"], ["fixed", 4, 0, None, None]),
        (ONE_OFF, ["data.train_batch_size=128"], ["fixed", 4, 4, None, None]),
    ],
)
def test_how_far_explorers_run_ahead(
    program: Program, flat: Flat, name: str, overrides: list[str], expected: list[Any]
) -> None:
    imported = program(name, *GROUP, *overrides)
    assert pacing(flat(imported.text)) == expected
    spec = load_text(imported.text, "o.yaml", environ={"HOME": "/h"}, cwd=Path("/w"), host=ANY_HOST).spec
    assert spec.stages[0].policy.kind == (expected[3] or "hard_bound")


def test_counts_of_batches_become_counts_of_steps(program: Program, flat: Flat) -> None:
    counted = (
        "rollout.total_rollout_steps=6400",
        "rollout.test_freq=5",
        "trainer.save_freq=2",
        "rollout.total_epochs=9",
    )
    warmup = "actor_rollout_ref.actor.optim.lr_warmup_steps=10"
    update = "async_training.require_batches=2"
    tree = flat(
        program(FULLY, *GROUP, "data.train_batch_size=0", "data.gen_batch_size=1", update, warmup, *counted).text
    )
    assert tree["buffer.batch_size"] == 32
    assert tree["buffer.train_batch_size"] == 128
    assert tree["buffer.total_steps"] == 200
    assert tree["buffer.total_epochs"] == 9
    assert tree["explorer.eval_interval"] == 5 * 8
    assert tree["trainer.save_interval"] == 2 * 8
    assert tree["algorithm.optimizer.lr_warmup_steps"] == 10 * 2


@pytest.mark.parametrize(
    ("halves", "cluster", "engines"),
    [
        (((1, 4), (1, 4)), (1, 8), (2, 2)),
        (((1, 8), (1, 8)), (2, 8), (4, 2)),
        (((2, 2), (2, 6)), (2, 8), (6, 2)),
        (((12, 8), (4, 8)), (16, 8), (16, 2)),
        (((8, 8), (8, 8)), (16, 8), (16, 4)),
        (((1, 8), (1, 4)), (3, 4), (2, 2)),
    ],
)
def test_each_half_keeps_its_gpus(
    program: Program,
    flat: Flat,
    halves: tuple[tuple[int, int], tuple[int, int]],
    cluster: tuple[int, int],
    engines: tuple[int, int],
) -> None:
    keys = ("trainer.nnodes", "trainer.n_gpus_per_node", "rollout.nnodes", "rollout.n_gpus_per_node")
    values = [number for half in halves for number in half]
    given = [f"{key}={value}" for key, value in zip(keys, values, strict=True)]
    tree = flat(program(FULLY, *GROUP, *given).text)
    assert (tree["cluster.node_num"], tree["cluster.gpu_per_node"]) == cluster
    model = "explorer.rollout_model"
    assert (tree[f"{model}.engine_num"], tree[f"{model}.tensor_parallel_size"]) == engines
    assert tree.get("trainer.engine_args.nodes") == (2 if halves == ((2, 2), (2, 6)) else None)


@pytest.mark.parametrize(
    ("name", "overrides", "expected"),
    [
        (FULLY, [], True),
        (FULLY, ["async_training.compute_prox_log_prob=True"], False),
        (FULLY, [f"{BYPASS}=False"], False),
        (ONE_OFF, [], True),
        ("verl.trainer.main_ppo", [], None),
    ],
)
def test_old_log_probabilities_are_the_rollouts_unless_the_script_says_otherwise(
    program: Program, flat: Flat, name: str, overrides: list[str], expected: bool | None
) -> None:
    assert flat(program(name, *GROUP, *overrides).text).get(BYPASS) is expected


def test_weights_beside_a_ratio_to_the_rollouts_are_left_out_as_there(program: Program) -> None:
    imported = program(FULLY, *GROUP, "algorithm.rollout_correction.rollout_is=token")
    assert "rollout_is" not in imported.text
    load_text(imported.text, "o.yaml", environ={"HOME": "/h"}, cwd=Path("/w"), host=ANY_HOST)


def test_another_program_with_such_keys_asks_a_person(program: Program) -> None:
    name = "recipe.partial_rollout.main_ppo"
    (line,) = [line for line in program(name, "+async_training.partial_rollout=True").lines if "partial" in line.key]
    assert line.outcome == "needs a person"


def test_a_hydra_file_is_known_by_its_keys(flat: Flat) -> None:
    tree = {"async_training": {"staleness_threshold": 0.25}, "actor_rollout_ref": {"rollout": {"n": 4}}}
    tree |= {"algorithm": {"adv_estimator": "grpo"}, "data": {"train_files": "d/train.jsonl"}}
    assert pacing(flat(import_tree(yaml.safe_dump(tree), "run.yaml").text))[3:] == ["verl_window", 0.25]
