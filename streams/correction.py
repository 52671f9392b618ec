"""The part of a specification that says how tokens of older weights are corrected for."""

from __future__ import annotations

from typing import Any

import msgspec

# Defaults say what logs mean that were written before the field was there, as in `rftd.streams.spec`.


class CorrectionPart(msgspec.Struct, frozen=True, kw_only=True):
    """One registered correction and its arguments."""

    kind: str
    args: dict[str, Any] = {}


class CorrectionSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The correction for tokens that older weights drew."""

    old_logprobs: str = "rollout"
    """`rollout`, `recomputed` or `approximated`: to which the policy loss takes its ratio."""
    parts: tuple[CorrectionPart, ...] = ()
