"""Losses from source text: like registered ones, with needs read from the text, or refused in words."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from synthetic.models.loss_tokens import make_loss_tokens

from rftd.ops.errors import ConfigError
from rftd.streams.spec.spec import AlgorithmSpec
from rftd.workers.learning.losses.loss_source import open_loss_source, outlined_loss
from rftd.workers.learning.losses.objective import Objective
from rftd.workers.learning.losses.policy_loss import LossNeeds
from rftd.workers.learning.losses.registry import POLICY_LOSSES
from rftd.workers.workflows.source import SourceName

FUNCTION = """
def clipped(logprobs, old_logprobs, advantages, clip=0.2):
    ratio = (logprobs - old_logprobs).clamp(-20, 20).exp()
    loss = -(advantages * ratio).minimum(advantages * ratio.clamp(1 - clip, 1 + clip))
    return loss, {"ratio": ratio, "clip": clip}
"""
CLASS = """
from rftd.workers.api import TokenLoss

class Weighted:
    needs_reference = True

    def __init__(self, *, weight=1.0):
        self.weight = weight

    def per_token(self, tokens):
        return TokenLoss(loss=-self.weight * tokens.advantages * tokens.logprobs, metrics={})
"""


def opened(text: str, name: str, **arguments: Any) -> Any:
    return open_loss_source(SourceName("mine.py", name), text, arguments)


def test_a_function_of_a_file_gives_the_loss_of_the_registered_formula() -> None:
    tokens = make_loss_tokens()
    registered = POLICY_LOSSES.open("ppo", {"clip_range": 0.1, "clip_ratio_c": 1e9}).per_token(tokens)
    answer = opened(FUNCTION, "clipped", clip=0.1).per_token(tokens)
    assert torch.equal(answer.loss, registered.loss)
    assert answer.metrics["ratio"].shape == answer.metrics["clip"].shape == tokens.logprobs.shape
    assert float(answer.metrics["clip"][0]) == 0.1
    assert not answer.metrics["ratio"].requires_grad


def test_a_class_of_a_file_is_a_loss_with_its_arguments() -> None:
    tokens = make_loss_tokens()
    answer = opened(CLASS, "Weighted", weight=2.0).per_token(tokens)
    assert torch.equal(answer.loss, -2.0 * tokens.advantages * tokens.logprobs)


@pytest.mark.parametrize(
    ("text", "name", "needs"),
    [
        (FUNCTION, "clipped", {"old_logprobs"}),
        (CLASS, "Weighted", {"reference"}),
        ("def plain(tokens): ...", "plain", set()),
        ("def near(logprobs, *, ref_logprobs): ...", "near", {"reference"}),
    ],
)
def test_needs_of_a_loss_are_read_without_running_its_text(text: str, name: str, needs: set[str]) -> None:
    outlined = outlined_loss(SourceName("mine.py", name), text + "\nraise AssertionError('run')\n")
    for loss in (outlined, opened(text, name)):
        declared = LossNeeds.of(loss)
        assert {need for need in ("old_logprobs", "reference", "pairs", "labels") if getattr(declared, need)} == needs


def test_an_objective_runs_the_text_only_where_it_should() -> None:
    spec = AlgorithmSpec(kind="grpo", policy_loss="mine.py:near", kl_loss="none")
    text = "def near(logprobs, ref_logprobs):\n    return logprobs - ref_logprobs\n"
    sources = {"mine.py": text}
    assert Objective.of(spec, sources).needs_reference
    outlined = Objective.of(spec, {"mine.py": text + "raise AssertionError('run')\n"}, runs=False)
    assert outlined.needs_reference
    with pytest.raises(ConfigError, match="runs in trainers only"):
        outlined.policy_loss.per_token(make_loss_tokens())
    with pytest.raises(ConfigError, match="not among the experiment's sources"):
        Objective.of(spec)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("def mine(logprobs):\n    return 1.0\n", "returned a loss of type float"),
        ("def mine(logprobs):\n    return logprobs, [1]\n", "returned figures of type list"),
        ("def mine(logprobs):\n    return logprobs, {'kl': 'low'}\n", "returned the figure 'kl' of type str"),
        ("def mine(logprobs):\n    raise SystemExit(3)\n", "exited with 3"),
        ("def mine(logprobs, mask):\n    return logprobs\n", "has a parameter 'mask' that nothing fills"),
        ("import nowhere_installed\ndef mine(logprobs): ...\n", "cannot be imported: ModuleNotFoundError"),
        ("raise SystemExit(4)\ndef mine(logprobs): ...\n", "cannot be imported: SystemExit: 4"),
        ("class mine:\n    pass\n", "has no method 'per_token'"),
    ],
)
def test_a_loss_that_cannot_be_used_says_why(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        opened(text, "mine").per_token(make_loss_tokens())
    assert problem in str(refused.value)


def test_a_loss_of_another_shape_is_refused_by_the_objective() -> None:
    text = "def mine(logprobs):\n    return logprobs.mean()\n"
    objective = Objective.of(AlgorithmSpec(kind="grpo", policy_loss="mine.py:mine"), {"mine.py": text})
    tokens = dataclasses.replace(make_loss_tokens(), entropies=None)
    with pytest.raises(ConfigError, match=r"gave loss of shape \(\) for 15 tokens"):
        objective.terms(tokens, None)  # type: ignore[arg-type] - refused before any weight is read
