"""`resolve_correction` combines `bypass_old_logprobs` and `rollout_correction` into one `CorrectionSpec`."""

from __future__ import annotations

from typing import Any, Final

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.issue import Contradiction, Notes, Unsupported, WrongValue
from rftd.daemon.config.schema.algorithm import Algorithm, PluginCorrection, RolloutCorrection
from rftd.ops.errors import ConfigError
from rftd.streams.spec.stage_parts import CorrectionPart, CorrectionSpec
from rftd.workers.learning.corrections.chain import Chain
from rftd.workers.learning.corrections.registry import CORRECTIONS

_SECTION: Final[FieldPath] = ("algorithm", "rollout_correction")
"""Section of the correction."""
_RATIOS: Final = {"token_k1": "token", "seq_sum_k1": "sequence", "seq_mean_k1": "geometric"}
"""Levels of ratios, by verl's criterion."""
_DIVERGENCES: Final = {
    f"{level}_{kind}": (kind, over)
    for level, over in (("token", "token"), ("seq_sum", "sum"), ("seq_mean", "mean"), ("seq_max", "max"))
    for kind in ("k2", "k3")
}
"""Estimator and level of divergences, by verl's criterion."""


def resolve_correction(algorithm: Algorithm, *, from_rollouts: bool, notes: Notes) -> CorrectionSpec:
    """Returns the correction of one stage: the source of the old log-probabilities, and its parts in order.

    `from_rollouts` is True if the file's defaults take old log-probabilities from the rollouts.
    """
    section = algorithm.rollout_correction
    old = _old_logprobs(algorithm, section)
    if section is None and old == "rollout":
        return CorrectionSpec()
    if not from_rollouts:
        field_path = _SECTION if section is not None else ("algorithm", "bypass_old_logprobs")
        notes.wrong(
            field_path,
            f"{algorithm.algorithm_type} trains on rows, which have no rollout log-probabilities",
            "leave it out",
        )
        return CorrectionSpec()
    parts = (
        ()
        if section is None
        else (*_weights(section, notes), *_rejections(section, notes), *_listed_corrections(section, notes))
    )
    spec = CorrectionSpec(old_logprobs=old, parts=parts)
    # The chain is constructed to check that the parts are compatible; third-party modules are not imported to check a
    # file.
    if all(CORRECTIONS.builtin(correction.kind) for correction in parts):
        try:
            Chain.of(spec)
        except ConfigError as error:
            notes.wrong(_SECTION, error.what, error.fix, Contradiction)
    return spec


def _old_logprobs(algorithm: Algorithm, section: RolloutCorrection | None) -> str:
    """Returns the source of the old log-probabilities: explicit fields first; a section without one means verl's
    default.
    """
    if section is not None:
        if section.old_logprobs is not None:
            return section.old_logprobs
        if section.bypass_mode is not None:
            # REINFORCE with a weight is the gradient at ratio 1 with the weight in front: equal to recomputed
            # log-probabilities.
            return "rollout" if section.bypass_mode and section.loss_type == "ppo_clip" else "recomputed"
    # The default is the guide's, not verl's: with a `rollout_correction` the field counts only if written by the user.
    if "bypass_old_logprobs" in algorithm.model_fields_set or section is None:
        return "rollout" if algorithm.bypass_old_logprobs else "recomputed"
    return "recomputed"


def _weights(section: RolloutCorrection, notes: Notes) -> tuple[CorrectionPart, ...]:
    """Returns the importance weights; empty without, or with an issue for an invalid threshold."""
    if section.rollout_is is None:
        return ()
    try:
        low, high = _bounds(section.rollout_is_threshold)
    except ValueError:
        problem = f"{section.rollout_is_threshold!r} is neither a number nor low_high"
        notes.wrong((*_SECTION, "rollout_is_threshold"), problem, "write 2.0, or 0.5_5.0 for icepop", WrongValue)
        return ()
    args: dict[str, Any] = {"level": section.rollout_is, "high": high}
    if low is not None:
        args["low"] = low
    if section.rollout_is_batch_normalize:
        args["batch_normalize"] = True
    return (CorrectionPart(kind="tis" if low is None else "icepop", args=args),)


def _rejections(section: RolloutCorrection, notes: Notes) -> tuple[CorrectionPart, ...]:
    """Returns the rejection criteria with thresholds; empty without, or with an issue for an invalid one."""
    names = [name.strip() for name in (section.rollout_rs or "").split(",") if name.strip()]
    if not names:
        return ()
    unknown = [name for name in names if name not in _RATIOS and name not in _DIVERGENCES]
    if unknown:
        criteria = ", ".join([*_RATIOS, *_DIVERGENCES])
        notes.wrong((*_SECTION, "rollout_rs"), f"no criterion {unknown[0]!r}", f"one of {criteria}", WrongValue)
        return ()
    # One number in YAML is a float, several comma-separated numbers are text: both are read as text.
    thresholds = [
        threshold_text.strip()
        for threshold_text in str(section.rollout_rs_threshold or "").split(",")
        if threshold_text.strip()
    ]
    if len(thresholds) not in (1, len(names)):
        problem = f"has {len(thresholds)} thresholds for {len(names)} criteria"
        notes.wrong(
            (*_SECTION, "rollout_rs_threshold"), problem, "write one for all, or one per criterion, comma-separated"
        )
        return ()
    thresholds = thresholds * len(names) if len(thresholds) == 1 else thresholds
    parts = []
    for name, threshold in zip(names, thresholds, strict=True):
        try:
            low, high = _bounds(threshold)
        except ValueError:
            low = None
            high = None
        if high is None or (low is not None and name in _DIVERGENCES):
            fix = "write 2.0, or 0.5_2.0" if name in _RATIOS else "write a number"
            problem = f"{threshold!r} is not a valid threshold of {name}"
            notes.wrong((*_SECTION, "rollout_rs_threshold"), problem, fix, WrongValue)
        elif name in _RATIOS:
            parts.append(
                CorrectionPart(kind=_RATIOS[name], args={"high": high} | ({} if low is None else {"low": low}))
            )
        else:
            kind, over = _DIVERGENCES[name]
            parts.append(CorrectionPart(kind=kind, args={"threshold": high, "level": over}))
    return tuple(parts)


def _bounds(threshold: float | str) -> tuple[float | None, float]:
    """Parses the bounds of a threshold: `2.0` -> (None, 2.0); `0.5_2.0` -> (0.5, 2.0). Raises ValueError."""
    if not isinstance(threshold, str):
        return None, threshold
    low, separator, high = threshold.partition("_")
    return (float(low), float(high)) if separator else (None, float(low))


def _listed_corrections(section: RolloutCorrection, notes: Notes) -> tuple[CorrectionPart, ...]:
    """Returns the corrections listed under `corrections`."""
    parts = []
    for index, correction in enumerate(section.corrections):
        if isinstance(correction, PluginCorrection):
            parts.append(CorrectionPart(kind=correction.name, args=correction.args))
            try:
                CORRECTIONS.check(correction.name)
            except ConfigError as error:
                notes.wrong((*_SECTION, "corrections", index, "name"), error.what, error.fix, Unsupported)
        else:
            args = {
                name: argument
                for name, argument in correction.model_dump().items()
                if name != "kind" and argument is not None
            }
            parts.append(CorrectionPart(kind=correction.kind, args=args))
    return tuple(parts)
