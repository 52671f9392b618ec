"""What every advantage function promises, ours and those that are added to the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from rftd.workers.learning.algorithms.advantages import ADVANTAGES, AdvantageFunction, ClosedGroup
from rftd.workers.learning.losses.batch_tokens import BatchTokens
from rftd.workers.learning.token_advantages.token_advantage import TokenAdvantage

VARIANTS: dict[str, Sequence[dict[str, Any]]] = {
    "grpo": (
        {},
        {"std_cal_level": "batch"},
        {"rank_penalty": 0.3, "std_threshold": 0.1},
        {"std_threshold": 0.2, "duplicate_experiences": True},
        {"std_cal_level": "none"},
        {"max_response_tokens": 40, "overlong_buffer": 15, "overlong_penalty": 0.5, "std_threshold": 0.1},
    ),
    "gdpo": ({}, {"weights": {"accuracy": 1.0, "format": 0.2}}),
    "grpo_passk": ({}, {"std_cal_level": "none"}),
    "pass_at_k": ({}, {"k": 2, "right_above": 0.0}),
    "opmd": ({}, {"opmd_baseline": "logavgexp", "tau": 0.3}),
    "rec": ({}, {"drop": "balance"}, {"drop": "balance", "std_normalize": True}),
    "step_wise_grpo": ({}, {"std_cal_level": "batch"}, {"std_cal_level": "none", "enable_step_norm": True}),
    "hierarchical_grpo": ({}, {"rollout_roles": ["solver"]}, {"rollout_roles": ["solver"], "std_cal_level": "group"}),
    "rae": ({}, {"decay": 0.5}),
    "gigpo": ({}, {"fnorm": "std", "gamma": 0.9, "omega": 0.5}),
    "ppo": ({}, {"gamma": 0.95, "lam": 0.9}),
}
OF_THE_BATCH = {"gpg", "gdpo"}
"""Those whose advantages of a group depend on the others of the batch."""
CASES = [(name, arguments) for name in ADVANTAGES.names() for arguments in VARIANTS.get(name, ({},))]
functions = pytest.mark.parametrize(("name", "arguments"), CASES)


def make_group(seed: int, members: int, *, equal: bool = False, scale: float = 1.0) -> ClosedGroup:
    """A group of runs of one or two steps, in any order."""
    rng = np.random.default_rng(seed)
    steps = [(run, step) for run in range(members) for step in range(1 + run % 2)]
    order = rng.permutation(len(steps))
    runs, places = np.array(steps)[order].T
    count = len(steps)
    return ClosedGroup(
        rewards=np.ones(count, np.float32) if equal else (scale * rng.normal(size=count)).astype(np.float32),
        runs=runs,
        steps=places,
        mean_logprobs=-rng.random(count).astype(np.float32),
        lengths=rng.integers(0, 50, count),
        parts={
            "accuracy": rng.normal(size=count).astype(np.float32),
            "format": np.where(rng.random(count) < 0.3, np.nan, scale).astype(np.float32),
        },
        step_rewards=np.where(rng.random(count) < 0.5, np.nan, rng.normal(size=count)).astype(np.float32),
        states=tuple(rng.choice(["", "here", "there"], count)),
        roles=tuple(rng.choice(["proposer", "solver"], count)),
        seed=seed,
    )


def with_greedy(function: AdvantageFunction, group: ClosedGroup) -> ClosedGroup:
    if not function.greedy_rollouts:
        return group
    return permuted(group, range(len(group.rewards)), greedy=group.run < function.greedy_rollouts)


def permuted(group: ClosedGroup, order: Sequence[int], **changes: Any) -> ClosedGroup:
    at = np.array(order, np.int64)
    fields: dict[str, Any] = {"seed": group.seed}
    for name in ("rewards", "runs", "steps", "greedy", "mean_logprobs", "lengths", "step_rewards"):
        value = getattr(group, name)
        fields[name] = None if value is None else value[at]
    fields["parts"] = {name: part[at] for name, part in group.parts.items()}
    fields["roles"] = None if group.roles is None else tuple(group.roles[index] for index in at)
    fields["states"] = None if group.states is None else tuple(group.states[index] for index in at)
    return ClosedGroup(**fields | changes)


def groups_for(function: AdvantageFunction) -> list[ClosedGroup]:
    return [with_greedy(function, make_group(seed, members)) for seed, members in enumerate((4, 1, 3, 6))]


@functions
def test_one_finite_number_for_each_experience(name: str, arguments: dict[str, Any]) -> None:
    function = ADVANTAGES.open(name, arguments)
    shapes = [
        make_group(1, 1),
        make_group(2, 1, equal=True),
        make_group(3, 5, equal=True),
        make_group(4, 4, scale=1e6),
        make_group(5, 4, scale=1e-12),
        make_group(6, 8),
    ]
    for groups in ([], *([with_greedy(function, each)] for each in shapes), groups_for(function)):
        found = function.advantages(groups)
        assert [each.shape for each in found] == [group.rewards.shape for group in groups]
        assert all(each.dtype == np.float32 and np.isfinite(each).all() for each in found)
    again = function.advantages(groups_for(function))
    for one, other in zip(function.advantages(groups_for(function)), again, strict=True):
        np.testing.assert_array_equal(one, other)


@functions
def test_neither_the_order_of_groups_nor_of_members_matters(name: str, arguments: dict[str, Any]) -> None:
    function = ADVANTAGES.open(name, arguments)
    groups = groups_for(function)
    whole = function.advantages(groups)
    rng = np.random.default_rng(3)
    order = [int(index) for index in rng.permutation(len(groups))]
    inner = [[int(index) for index in rng.permutation(len(each.rewards))] for each in groups]
    found = function.advantages([permuted(groups[index], inner[index]) for index in order])
    for index, each in zip(order, found, strict=True):
        np.testing.assert_allclose(each, whole[index][inner[index]], rtol=1e-5, atol=1e-6)


@functions
def test_what_else_is_in_the_batch_does_not_matter(name: str, arguments: dict[str, Any]) -> None:
    """Rule 5 of the log: a group that is split over batches has the advantages that it has whole."""
    if arguments.get("std_cal_level") == "batch" or name in OF_THE_BATCH:
        pytest.skip("is divided by a figure of the whole batch, as was asked")
    function = ADVANTAGES.open(name, arguments)
    groups = groups_for(function)
    for group, found in zip(groups, function.advantages(groups), strict=True):
        (alone,) = function.advantages([group])
        np.testing.assert_array_equal(alone, found)


@functions
def test_a_group_that_teaches_nothing_has_no_advantage(name: str, arguments: dict[str, Any]) -> None:
    function = ADVANTAGES.open(name, arguments)
    groups = [with_greedy(function, make_group(seed, 1 + seed % 4, equal=seed % 3 == 0)) for seed in range(12)]
    for group, found in zip(groups, function.advantages(groups), strict=True):
        told = permuted(
            group, range(len(group.rewards)), mean_logprobs=None, lengths=None, parts={}, step_rewards=None, states=None
        )
        if not function.informative(told):
            assert not found.any()


@functions
def test_what_is_read_for_nothing_is_not_asked_for(name: str, arguments: dict[str, Any]) -> None:
    function = ADVANTAGES.open(name, arguments)
    known = {"mean_logprobs", "lengths", "parts", "step_rewards", "states", "roles"}
    assert function.member_fields <= known | {"steps"}
    groups = groups_for(function)
    blind: dict[str, Any] = dict.fromkeys(known - function.member_fields)
    if "parts" in blind:
        blind["parts"] = {}
    without = [permuted(group, range(len(group.rewards)), **blind) for group in groups]
    for one, other in zip(function.advantages(groups), function.advantages(without), strict=True):
        np.testing.assert_array_equal(one, other)


def make_batch(seed: int, order: Sequence[int] | None = None) -> BatchTokens:
    """A batch of responses of several lengths, one of them empty, taken in this order."""
    rng = np.random.default_rng(seed)
    lengths = [4, 1, 0, 6, 3]
    columns = ("old_logprobs", "logprobs", "ref_logprobs", "teacher_logprobs", "advantages", "values", "penalties")
    rows = [{name: rng.normal(-2 if "log" in name else 0, 1, length) for name in columns} for length in lengths]
    for row, length in zip(rows, lengths, strict=True):
        row["entropies"], row["entropy_signals"] = rng.random(length), rng.normal(0, 0.3, length)
        row["squares"] = rng.random(length)
    taken = list(range(len(rows))) if order is None else list(order)
    fields = {name: torch.from_numpy(np.concatenate([rows[index][name] for index in taken])) for name in rows[0]}
    sequence = [place for place, index in enumerate(taken) for _ in range(lengths[index])]
    return BatchTokens(
        **fields,
        rewards=torch.from_numpy(np.arange(5.0)[taken]),
        expert=torch.zeros(len(sequence), dtype=torch.bool),
        sequence=torch.tensor(sequence),
        sequences=len(taken),
        groups=torch.tensor([0, 1, 1, 0, -1])[taken],
    )


tokens = pytest.mark.parametrize(
    ("name", "arguments"),
    [case for case in CASES if isinstance(ADVANTAGES.open(*case), TokenAdvantage)],
)


@tokens
def test_one_finite_number_for_each_token(name: str, arguments: dict[str, Any]) -> None:
    function = ADVANTAGES.open(name, arguments)
    assert isinstance(function, TokenAdvantage)
    batch = make_batch(1)
    found = function.token_advantages(batch)
    assert found.shape == batch.old_logprobs.shape
    assert found.dtype == batch.old_logprobs.dtype
    assert bool(found.isfinite().all())


@tokens
def test_the_order_of_responses_does_not_matter(name: str, arguments: dict[str, Any]) -> None:
    function = ADVANTAGES.open(name, arguments)
    assert isinstance(function, TokenAdvantage)
    order = [3, 0, 4, 2, 1]
    batch, turned = make_batch(2), make_batch(2, order)
    one, other = function.token_advantages(batch), function.token_advantages(turned)
    for place, index in enumerate(order):
        torch.testing.assert_close(other[turned.sequence == place], one[batch.sequence == index])


@tokens
def test_it_reads_only_what_it_asks_for(name: str, arguments: dict[str, Any]) -> None:
    function = ADVANTAGES.open(name, arguments)
    assert isinstance(function, TokenAdvantage)
    batch = make_batch(3)
    paid = {"logprobs", "entropies", "entropy_signals", "squares", "ref_logprobs", "teacher_logprobs", "values"}
    assert function.needs <= paid
    fields = {name: getattr(batch, name) for name in BatchTokens.__slots__}
    less = BatchTokens(**fields | dict.fromkeys(paid - function.needs))
    torch.testing.assert_close(function.token_advantages(less), function.token_advantages(batch))
