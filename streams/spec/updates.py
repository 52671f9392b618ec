"""The part of a specification that says how a batch changes the weights: how often, and by which corrections."""

from __future__ import annotations

from typing import Any

import msgspec

from rftd.streams.log.bounds import Index

# Defaults say what logs mean that were written before the field was there, as in `rftd.streams.spec.spec`.


class UpdatesSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The optimizer steps that one batch gives: epochs over it in mini-batches."""

    epochs: Index = 1
    mini_batch_items: Index = 0
    """Items of the batch in one optimizer step; 0: all of them."""
    shuffle: bool = False
    """Each epoch has an order of its own, drawn from the experiment's seed and the step."""


# Defaults say what logs mean that were written before the field was there, as in `rftd.streams.spec.spec`.


class CorrectionPart(msgspec.Struct, frozen=True, kw_only=True):
    """One registered correction and its arguments."""

    kind: str
    args: dict[str, Any] = {}


class CorrectionSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The correction for tokens that older weights drew."""

    old_logprobs: str = "rollout"
    """`rollout`, `recomputed` or `approximated`: to which the policy loss takes its ratio."""
    parts: tuple[CorrectionPart, ...] = ()
