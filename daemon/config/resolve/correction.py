"""`resolve_correction` makes one `CorrectionSpec` of `bypass_old_logprobs` and `rollout_correction`."""

from __future__ import annotations

from typing import Any, Final

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.issue import Contradiction, Notes, Unsupported, WrongValue
from rftd.daemon.config.schema.algorithm import Algorithm, PluginCorrection, RolloutCorrection
from rftd.ops.errors import ConfigError
from rftd.streams.spec.updates import CorrectionPart, CorrectionSpec
from rftd.workers.learning.corrections.chain import Chain
from rftd.workers.learning.corrections.registry import CORRECTIONS

_SECTION: Final[FieldPath] = ("algorithm", "rollout_correction")
_RATIOS: Final = {"token_k1": "token", "seq_sum_k1": "sequence", "seq_mean_k1": "geometric"}
_DIVERGENCES: Final = {
    f"{level}_{kind}": (kind, over)
    for level, over in (("token", "token"), ("seq_sum", "sum"), ("seq_mean", "mean"), ("seq_max", "max"))
    for kind in ("k2", "k3")
}


def resolve_correction(given: Algorithm, *, from_rollouts: bool, notes: Notes) -> CorrectionSpec:
    """The correction of one stage: which log-probabilities are the old ones, and the parts in their order."""
    section = given.rollout_correction
    old = _old_logprobs(given, section)
    if section is None and old == "rollout":
        return CorrectionSpec()
    if not from_rollouts:
        place = _SECTION if section is not None else ("algorithm", "bypass_old_logprobs")
        notes.wrong(place, f"{given.algorithm_type} trains on rows, which no weights drew", "leave it out")
        return CorrectionSpec()
    parts = () if section is None else (*_weights(section, notes), *_rejections(section, notes), *_own(section, notes))
    spec = CorrectionSpec(old_logprobs=old, parts=parts)
    # The chain is made to see that its parts fit each other; a third party's module is not imported to check a
    # file.
    if all(CORRECTIONS.builtin(part.kind) for part in parts):
        try:
            Chain.of(spec)
        except ConfigError as error:
            notes.wrong(_SECTION, error.what, error.fix, Contradiction)
    return spec


def _old_logprobs(given: Algorithm, section: RolloutCorrection | None) -> str:
    """The source of the old log-probabilities: the plainest field counts, a section without one means verl's."""
    if section is not None:
        if section.old_logprobs is not None:
            return section.old_logprobs
        if section.bypass_mode is not None:
            # REINFORCE with a weight is the gradient at a ratio of 1, the weight in front: that of recomputed ones.
            return "rollout" if section.bypass_mode and section.loss_type == "ppo_clip" else "recomputed"
    # Its default is the guide's and not verl's: with a `rollout_correction` it counts only if the user wrote it.
    if "bypass_old_logprobs" in given.model_fields_set or section is None:
        return "rollout" if given.bypass_old_logprobs else "recomputed"
    return "recomputed"


def _weights(section: RolloutCorrection, notes: Notes) -> tuple[CorrectionPart, ...]:
    if section.rollout_is is None:
        return ()
    try:
        low, high = _bounds(section.rollout_is_threshold)
    except ValueError:
        what = f"{section.rollout_is_threshold!r} is neither a number nor low_high"
        notes.wrong((*_SECTION, "rollout_is_threshold"), what, "write 2.0, or 0.5_5.0 for icepop", WrongValue)
        return ()
    args: dict[str, Any] = {"level": section.rollout_is, "high": high}
    if low is not None:
        args["low"] = low
    if section.rollout_is_batch_normalize:
        args["batch_normalize"] = True
    return (CorrectionPart(kind="tis" if low is None else "icepop", args=args),)


def _rejections(section: RolloutCorrection, notes: Notes) -> tuple[CorrectionPart, ...]:
    names = [name.strip() for name in (section.rollout_rs or "").split(",") if name.strip()]
    if not names:
        return ()
    unknown = [name for name in names if name not in _RATIOS and name not in _DIVERGENCES]
    if unknown:
        known = ", ".join([*_RATIOS, *_DIVERGENCES])
        notes.wrong((*_SECTION, "rollout_rs"), f"no criterion {unknown[0]!r}", f"one of {known}", WrongValue)
        return ()
    # One number in YAML is a float, several by commas a text: both are read as a text.
    thresholds = [each.strip() for each in str(section.rollout_rs_threshold or "").split(",") if each.strip()]
    if len(thresholds) not in (1, len(names)):
        what = f"has {len(thresholds)} thresholds for {len(names)} criteria"
        notes.wrong((*_SECTION, "rollout_rs_threshold"), what, "write one for all, or one for each, by commas")
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
            what = f"{threshold!r} is no threshold of {name}"
            notes.wrong((*_SECTION, "rollout_rs_threshold"), what, fix, WrongValue)
        elif name in _RATIOS:
            parts.append(
                CorrectionPart(kind=_RATIOS[name], args={"high": high} | ({} if low is None else {"low": low}))
            )
        else:
            kind, over = _DIVERGENCES[name]
            parts.append(CorrectionPart(kind=kind, args={"threshold": high, "level": over}))
    return tuple(parts)


def _bounds(threshold: float | str) -> tuple[float | None, float]:
    """The bounds of a threshold: `2.0` -> (None, 2.0); `0.5_2.0` -> (0.5, 2.0). Raises ValueError."""
    if not isinstance(threshold, str):
        return None, threshold
    low, separator, high = threshold.partition("_")
    return (float(low), float(high)) if separator else (None, float(low))


def _own(section: RolloutCorrection, notes: Notes) -> tuple[CorrectionPart, ...]:
    parts = []
    for index, each in enumerate(section.corrections):
        if isinstance(each, PluginCorrection):
            parts.append(CorrectionPart(kind=each.name, args=each.args))
            try:
                CORRECTIONS.check(each.name)
            except ConfigError as error:
                notes.wrong((*_SECTION, "corrections", index, "name"), error.what, error.fix, Unsupported)
        else:
            args = {name: value for name, value in each.model_dump().items() if name != "kind" and value is not None}
            parts.append(CorrectionPart(kind=each.kind, args=args))
    return tuple(parts)
