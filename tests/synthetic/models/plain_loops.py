"""Training as it is written down: torch.optim in float64 over a whole model, one response at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from transformers import AutoModelForCausalLM

from rftd.streams.spec.sections import Optimizer
from rftd.workers.engines.torch.trainer.engine import TorchTrainerEngine
from rftd.workers.learning.engine import TrainBatch, TrainSample

Weights = dict[str, torch.Tensor]
MODES = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


@dataclass(frozen=True)
class Response:
    """Log-probabilities of one response's trained tokens, and its advantage."""

    now: torch.Tensor
    start: torch.Tensor
    """Before the batch's first step."""
    rollout: torch.Tensor
    advantage: float


def near_policy(model: Path, batch: TrainBatch) -> TrainBatch:
    """The batch as rollouts of weights that are not far from these."""
    rng = np.random.default_rng(4)
    policy = plain_model(model)
    samples = []
    for sample in batch.samples:
        with torch.no_grad():
            own = logprobs_of(policy, sample).numpy()
        drawn = (own + rng.normal(0, 0.15, len(own))).astype(np.float32)
        samples.append(msgspec.structs.replace(sample, logprobs=drawn))
    return msgspec.structs.replace(batch, samples=samples)


def plain_model(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")


def logprobs_of(policy: Any, sample: TrainSample) -> torch.Tensor:
    """Log-probabilities of the response's tokens, masked ones too."""
    ids = torch.tensor(sample.tokens.astype(np.int64))[None]
    logits = policy(input_ids=ids).logits[0, sample.prompt_tokens - 1 : -1]
    return torch.log_softmax(logits, -1).gather(1, ids[0, sample.prompt_tokens :, None])[:, 0]


def aggregated(mode: str, losses: Sequence[torch.Tensor], longest: int) -> torch.Tensor:
    """The loss of one mini-batch; `longest` is the length of its longest response."""
    if mode == "token-mean":
        return torch.cat(list(losses)).mean()
    of_response = {
        "seq-mean-token-sum": [loss.sum() for loss in losses],
        "seq-mean-token-mean": [loss.mean() for loss in losses],
        "seq-mean-token-sum-norm": [loss.sum() / longest for loss in losses],
    }[mode]
    return torch.stack(of_response).mean()


def plain_loop(
    folder: Path,
    batch: TrainBatch,
    steps: Sequence[Sequence[int]],
    loss: Callable[[Response], torch.Tensor],
    mode: str,
    optimizer: Optimizer,
) -> Weights:
    """The weights after one optimizer step for each list of sample numbers."""
    return joint_loop(folder, batch, steps, lambda responses: [loss(each) for each in responses], mode, optimizer)


def joint_loop(
    folder: Path,
    batch: TrainBatch,
    steps: Sequence[Sequence[int]],
    losses_of: Callable[[Sequence[Response]], Sequence[torch.Tensor]],
    mode: str,
    optimizer: Optimizer,
) -> Weights:
    """The plain loop for a loss that looks at all responses of a step at once."""
    policy = plain_model(folder)
    kind = torch.optim.SGD if optimizer.optimizer_type == "sgd" else torch.optim.AdamW
    made = kind(policy.parameters(), lr=optimizer.lr, weight_decay=optimizer.weight_decay)
    masks = [torch.tensor(sample.loss_mask) != 0 for sample in batch.samples]
    with torch.no_grad():
        starts = [logprobs_of(policy, sample) for sample in batch.samples]
    for numbers in steps:
        responses = []
        for number in numbers:
            sample = batch.samples[number]
            mask = masks[number]
            assert sample.logprobs is not None
            assert sample.advantages is not None
            responses.append(
                Response(
                    now=logprobs_of(policy, sample)[mask],
                    start=starts[number][mask],
                    rollout=torch.tensor(sample.logprobs)[mask].double(),
                    advantage=float(sample.advantages[0]),
                )
            )
        losses = losses_of(responses)
        made.zero_grad()
        aggregated(mode, losses, max(len(masks[number]) for number in numbers)).backward()  # type: ignore[no-untyped-call]
        if optimizer.clip_grad > 0:
            torch.nn.utils.clip_grad_norm_(policy.parameters(), optimizer.clip_grad)
        made.step()
    return {name: value.detach() for name, value in policy.named_parameters()}


def relative(found: Weights, expected: Weights, before: Weights | None = None) -> float:
    """|found - expected| / |expected - before|, over all weights together."""
    assert found.keys() == expected.keys()
    apart = sum(float((found[name].double() - expected[name]).square().sum()) for name in expected)
    moved = sum(
        float((value - (0 if before is None else before[name].double())).square().sum())
        for name, value in expected.items()
    )
    return float((apart / moved) ** 0.5)


def in_order(batch: TrainBatch, size: int, epochs: int) -> list[list[int]]:
    numbers = list(range(len(batch.samples)))
    return [numbers[start : start + size] for start in range(0, len(numbers), size)] * epochs


def weights_of(engine: TorchTrainerEngine) -> Weights:
    return {name: value.detach().clone() for name, value in engine._open_policy.parameters().items()}
