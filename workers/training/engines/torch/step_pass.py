"""The pass over a mini-batch before its optimizer step, without gradients: masks that its micro-batches share.

The sources of these masks (verl, AReaL, the authors of M2PO) choose tokens inside the loss, by the weights of that
step, from one micro-batch. Here they choose from all that the step sees, so that micro-batches change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rftd.workers.training.corrections.correction import Corrected
from rftd.workers.training.engines.torch.batch_pass import BatchPass, carried
from rftd.workers.training.engines.torch.forward import Passed, logprobs_of
from rftd.workers.training.engines.torch.packing import MicroBatch
from rftd.workers.training.engines.torch.stage import Stage


@torch.no_grad()
def step_pass(
    model: Any, stage: Stage, packed: Sequence[MicroBatch], known: BatchPass, device: torch.device, *, version: int
) -> list[Passed]:
    """What is known of each micro-batch of one step, with the corrections that must see the whole mini-batch.

    Each of `packed` has trained tokens. If there are such corrections, it costs a forward pass, unless they go by the
    log-probabilities before the batch, which are known then. `version` is that of the weights before the batch.
    """
    passed = [known.of(micro) for micro in packed]
    chain = stage.objective.correction
    if not packed or not chain.whole_mini_batch:
        return passed
    tokens = carried(packed, device, version=version)
    if (advantages := _joined([each.advantages for each in passed])) is not None:
        tokens = replace(tokens, advantages=advantages)
    logprobs = _joined([each.start_logprobs for each in passed])
    if logprobs is None:
        logprobs = torch.cat([logprobs_of(model, micro, device)[0] for micro in packed])
    before = Corrected(
        multiplier=_joined([each.multiplier for each in passed]),
        keep=_joined([each.keep for each in passed]),
        marked=_joined([each.marked for each in passed]),
    )
    made = chain.of_mini_batch(replace(tokens, logprobs=logprobs), before)
    sizes = [len(micro.targets) for micro in packed]
    multipliers, keeps, marks = (_parts(each, sizes) for each in (made.multiplier, made.keep, made.marked))
    return [
        replace(each, multiplier=multiplier, keep=keep, marked=marked)
        for each, multiplier, keep, marked in zip(passed, multipliers, keeps, marks, strict=True)
    ]


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    known = [part for part in parts if part is not None]
    return torch.cat(known) if known else None


def _parts(values: Tensor | None, sizes: Sequence[int]) -> Sequence[Tensor | None]:
    if values is None:
        return [None] * len(sizes)
    parts: Sequence[Tensor] = torch.split(values, list(sizes))
    return parts
