"""The part of a specification on the change of weights by a batch: the optimizer steps, and the corrections."""

from __future__ import annotations

from typing import Any

import msgspec

from rftd.streams.log.bounds import Index

# Defaults give the meaning of logs written before the field existed, as in `rftd.streams.spec.spec`.


class UpdatesSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The optimizer steps of one batch: epochs over the batch in mini-batches."""

    epochs: Index = 1
    mini_batch_items: Index = 0
    """Items of the batch in one optimizer step; 0: all of them."""
    shuffle: bool = False
    """True: each epoch has a separate order, drawn from the experiment's seed and the step."""


class CorrectionPart(msgspec.Struct, frozen=True, kw_only=True):
    """One registered correction and its arguments."""

    kind: str
    args: dict[str, Any] = {}


class CorrectionSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The correction for tokens drawn by older weights."""

    old_logprobs: str = "rollout"
    """`rollout`, `recomputed` or `approximated`: the denominator of the policy loss's ratio."""
    parts: tuple[CorrectionPart, ...] = ()
