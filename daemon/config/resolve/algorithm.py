"""The algorithm's own defaults with the user's parts over them, and the optimizer."""

from __future__ import annotations

from typing import Any

from rftd.daemon.config.issue import Contradiction, Unsupported
from rftd.daemon.config.resolve import algorithm_table as table
from rftd.daemon.config.resolve.notes import Notes
from rftd.daemon.config.schema.algorithm import Algorithm
from rftd.daemon.config.schema.trainer import Trainer
from rftd.streams.spec import AlgorithmSpec, OptimizerSpec

_PARTS = ("advantage", "policy_loss", "kl_loss", "entropy_loss")


def resolve_algorithm(given: Algorithm, trainer: Trainer, total_steps: int, notes: Notes) -> AlgorithmSpec | None:
    """The objective of one stage, or None after saying that its type cannot be run."""
    kind = given.algorithm_type
    entry = table.find(kind)
    if entry is None:
        known = kind in table.GUIDE
        what = f"{kind!r} is in the guide, but cannot be run yet" if known else f"no algorithm is named {kind!r}"
        fix = f"rftd has: {', '.join(table.names())}"
        near = None if known else table.nearest(kind)
        notes.wrong(
            ("algorithm", "algorithm_type"), what, f"did you mean {near!r}? {fix}" if near else fix, Unsupported
        )
        return None
    parts: dict[str, Any] = {}
    for part in _PARTS:
        name = getattr(given, f"{part}_fn") or getattr(entry, part)
        if name not in table.functions(part):
            what = f"{name!r} cannot be run yet"
            fix = f"rftd has: {', '.join(table.functions(part))}"
            notes.wrong(("algorithm", f"{part}_fn"), what, fix, Unsupported)
        parts[part] = name
        parts[f"{part}_args"] = {**table.default_args(part, name), **(getattr(given, f"{part}_fn_args") or {})}
    strategy = given.sample_strategy or "default"
    if strategy not in table.STRATEGIES:
        fix = f"rftd has: {', '.join(table.STRATEGIES)}"
        notes.wrong(("algorithm", "sample_strategy"), f"{strategy!r} cannot be run yet", fix, Unsupported)
    return AlgorithmSpec(
        kind=kind,
        repeat_times=_repeat_times(given, entry, notes),
        **parts,
        loss_agg_mode=given.loss_agg_mode or entry.loss_agg_mode,
        sample_strategy=strategy,
        sample_strategy_args=dict(given.sample_strategy_args or {}),
        optimizer=_optimizer(given, trainer, total_steps),
    )


def learns_from_rows(kind: str) -> bool:
    """True if the type trains on the rows of a dataset, without exploring."""
    entry = table.find(kind)
    return entry is not None and entry.rows


def _repeat_times(given: Algorithm, entry: table.Entry, notes: Notes) -> int:
    asked = given.repeat_times
    if entry.rows:
        if asked not in (None, 1):
            notes.warn(f"algorithm.repeat_times has no effect with {given.algorithm_type}, which trains on rows")
        return 1
    if asked is None:
        return entry.repeat_times
    if entry.group and asked < 2:
        what = (
            f"is {asked}, but {given.algorithm_type} compares the answers to one task with each other: "
            "with a single answer every advantage is zero and nothing is learnt"
        )
        fix = f"set it to 2 or more, or leave it out for {entry.repeat_times}"
        notes.wrong(("algorithm", "repeat_times"), what, fix, Contradiction)
    return asked


def _optimizer(given: Algorithm, trainer: Trainer, total_steps: int) -> OptimizerSpec:
    optimizer = given.optimizer
    ratio = optimizer.lr_warmup_steps_ratio
    warmup = optimizer.lr_warmup_steps if optimizer.lr_warmup_steps >= 0 else int(ratio * total_steps)
    clip = trainer.grad_clip if "grad_clip" in trainer.model_fields_set else optimizer.clip_grad
    return OptimizerSpec(
        kind=optimizer.optimizer_type,
        lr=optimizer.lr,
        betas=(optimizer.betas[0], optimizer.betas[1]),
        weight_decay=optimizer.weight_decay,
        warmup_steps=warmup,
        warmup_ratio=ratio if optimizer.lr_warmup_steps < 0 and not total_steps else 0.0,
        scheduler=optimizer.lr_scheduler_type,
        min_lr_ratio=optimizer.min_lr_ratio,
        grad_clip=clip,
    )
