"""Names that Trinity-RFT has for arguments of the parts, and what they are called here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.issue import Contradiction, WrongValue
from rftd.daemon.config.resolve.notes import Notes
from rftd.daemon.config.schema.algorithm import Algorithm
from rftd.ops.errors import ConfigError
from rftd.workers.training.losses import aggregation, sft
from rftd.workers.training.losses.registry import POLICY_LOSSES, tells_labels

_ARGS: Final[FieldPath] = ("algorithm", "policy_loss_fn_args")
_RENAMED: Final[Mapping[str, Mapping[str, str]]] = {"ppo": {"delta_sequence_masking": "delta"}}
"""Upstream's names of arguments and ours, by loss."""
_MODES: Final[Mapping[str, tuple[str, ...]]] = {"mix": ("grpo_loss_agg_mode",), "mix_chord": ("grpo_loss_agg_mode",)}
"""Other names for the aggregation of its rollouts beside `loss_agg_mode`, by loss."""


def other_names(loss: str) -> tuple[str, ...]:
    """Names of arguments that `policy_loss_args` takes beside those of the loss itself."""
    if not POLICY_LOSSES.builtin(loss):
        return ()
    whole = tells_labels(loss)  # a pair, or a response, is one value, which no mode aggregates
    return (*_RENAMED.get(loss, ()), *(() if whole else _modes(loss)))


def policy_loss_args(given: Algorithm, loss: str, notes: Notes) -> tuple[dict[str, Any], str | None]:
    """The arguments of the policy loss by our names, and the aggregation that the file asks for, if it does.

    Two names of one thing must agree.
    """
    args = dict(given.policy_loss_fn_args or {})
    taken = other_names(loss)
    for old, new in _RENAMED.get(loss, {}).items():
        if old not in args:
            continue
        value = args.pop(old)
        if args.setdefault(new, value) != value:
            what = f"is {value!r}, and {new}, which is the same here, {args[new]!r}"
            notes.wrong((*_ARGS, old), what, f"keep {new} only", Contradiction)
    asked: str | None = given.loss_agg_mode
    first: FieldPath = ("algorithm", "loss_agg_mode")
    for name in _modes(loss):
        if name not in taken or name not in args:
            continue
        mode = _checked((*_ARGS, name), args.pop(name), notes)
        if asked is None:
            asked = mode
            first = (*_ARGS, name)
        elif mode not in (None, asked):
            what = f"is {mode}, and {show(first)}, which is the same, {asked}"
            notes.wrong((*_ARGS, name), what, "keep one of them", Contradiction)
    switched = sft.mode_of(args.get("use_token_level_loss"))
    if asked is not None and switched not in (None, asked):
        what = f"asks for {switched}, and {show(first)} is {asked}"
        notes.wrong((*_ARGS, "use_token_level_loss"), what, "keep one of them", Contradiction)
    return args, asked


def _modes(loss: str) -> tuple[str, ...]:
    return ("loss_agg_mode", *_MODES.get(loss, ()))


def _checked(path: FieldPath, mode: Any, notes: Notes) -> str | None:
    if mode is None:
        return None
    try:
        aggregation.check(str(mode))
    except ConfigError as error:
        notes.wrong(path, error.what, error.fix, WrongValue)
        return None
    return str(mode)
