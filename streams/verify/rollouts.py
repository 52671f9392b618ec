"""The records of explorers: experiences, and scores of held-out rows."""

from __future__ import annotations

import math
import struct
from typing import Any, Final

from rftd.ops.errors import CodecError
from rftd.streams.events import experience, step
from rftd.streams.figures.eval_figures import ACCURACY
from rftd.streams.figures.reward_parts import part_means, part_of, part_sums
from rftd.streams.log.envelope import Decoded
from rftd.streams.verify.answers import answered, holder_key
from rftd.streams.verify.evidence import EvalEvidence, Evidence, Scores
from rftd.streams.verify.facts import ARTIFACT, FATE, FATE_AT, ORIGIN, PRESENT, Facts
from rftd.streams.verify.identities import low, mixed

_TOLERANCE: Final = 1e-4
"""Maximum relative error of a mean computed in single precision."""
_I31: Final = (1 << 31) - 1
"""Stored in place of versions (negative) and rollout that do not fit into a row: numbers that no member can have."""


def produced(facts: Facts, evidence: Evidence, event: experience.ExperienceProduced, decoded: Decoded) -> None:
    """Stores an experience's values at its position, for comparison with its group's."""
    evidence.produced += 1
    oldest = newest = 0
    spans = event.spans
    if spans:
        # A loop instead of `min`, `max` and sets: this runs for each span of each experience.
        oldest = newest = spans[0].version
        source = decoded.head.source
        for span in spans:
            version = span.version
            if version < oldest:
                oldest = version
            elif version > newest:
                newest = version
            if evidence.drawn_last.get(source) != version:
                evidence.drawn_last[source] = version
                facts.drawn.add((evidence.index, source), version)
    page, at = facts.produced.row(decoded.partition.number, decoded.offset)
    id = low(event.experience)
    group = mixed(event.group)
    try:
        ORIGIN.pack_into(
            page, at, id, group, event.reward, event.priority, len(event.tokens), oldest, newest, event.rollout
        )
    except struct.error:  # numbers that no member can have either
        ORIGIN.pack_into(page, at, id, group, event.reward, event.priority, 0, -_I31, -_I31, _I31)
    FATE.pack_into(page, at + FATE_AT, evidence.index, PRESENT, 0, 0, 0, 0, 0, 0, 0)
    answered(facts, evidence, event, decoded)
    if facts.files and any(array.artifact for array in event.arrays.values()):
        named(facts, evidence, *(array.artifact for array in event.arrays.values()))


def scored(facts: Facts, evidence: Evidence, event: experience.EvalScored, decoded: Decoded) -> None:
    """Stores the sums of a range of held-out rows; of several scores of a range under one lease and writer, the first
    counts.
    """
    answered(facts, evidence, event, decoded)
    if facts.files:
        answers = [] if event.answers is None else [event.answers]
        named(facts, evidence, *(array.artifact for array in (event.rewards, event.tokens, *answers)))
    evaluation = evidence.evals.setdefault(event.eval, EvalEvidence())
    if evaluation is None:
        return
    scores = evaluation.scores.setdefault(event.row_start, {})
    key = holder_key(evidence, event.lease, decoded.head.source)
    if key in scores:
        return
    try:
        reward = float(event.rewards.view().sum(dtype="f8"))
        tokens = float(event.tokens.view().sum(dtype="f8"))
    except CodecError:
        reward = tokens = float("nan")
    right = None if event.right is None else int((event.right.view() != 0).sum())
    scores[key] = Scores(event.rows, len(event.rewards), reward, tokens, event.reward_parts, right)


def eval_completed(facts: Facts, evidence: Evidence, event: step.EvalCompleted, _decoded: Decoded) -> None:
    """Checks that the result of an evaluation is the mean of its scores, within `_TOLERANCE`."""
    if event.eval in evidence.evals and evidence.evals[event.eval] is None:
        return  # a repetition
    evaluation = evidence.evals.get(event.eval)
    ranges = evaluation.ranges() if evaluation is not None else []
    evidence.evals[event.eval] = None
    subject = f"the evaluation of {event.taskset} by version {event.version}"
    rows = sum(scores.rows for scores in ranges)
    if rows != event.rows:
        facts.note("evals-are-their-scores", evidence.id, f"{subject} is of {event.rows} rows, and {rows} were scored")
        return
    answers = max(1, sum(scores.answers for scores in ranges))
    means = {
        "score": (event.score, sum(scores.reward for scores in ranges) / answers),
        "response_length/mean": (
            event.metrics.get("response_length/mean"),
            sum(scores.tokens for scores in ranges) / answers,
        ),
    }
    right = [scores.right for scores in ranges if scores.right is not None]
    if ACCURACY in event.metrics:
        # If a range does not report right answers, the share over all ranges is unknown.
        accuracy = sum(right) / answers if len(right) == len(ranges) else math.nan
        means[ACCURACY] = (event.metrics[ACCURACY], accuracy)
    parts = part_means(part_sums(scores.parts for scores in ranges), answers)
    for name in parts.keys() | {name for name in event.metrics if part_of(name) is not None}:
        means[name] = (event.metrics.get(name, math.nan), parts.get(name, math.nan))
    for name, (stated, mean) in means.items():
        if stated is not None and rows and not _alike(stated, mean):
            facts.note(
                "evals-are-their-scores", evidence.id, f"{subject} says {name} {stated}, its scores give {mean:.6g}"
            )


def named(facts: Facts, evidence: Evidence, *artifacts: str) -> None:
    """Stores named artifacts; a text that is no sha256 names none."""
    for sha256 in artifacts:
        try:
            digest = bytes.fromhex(sha256)
        except ValueError:
            continue
        if len(digest) == 32:
            facts.artifacts.add(ARTIFACT.pack(digest, evidence.index))


def _alike(stated: float, mean: float) -> bool:
    # NaN equals nothing, itself included: a mean of damaged scores must match a NaN, and nothing else.
    """True if a stated mean equals the computed one, up to rounding; NaN is like NaN."""
    if stated != stated or mean != mean:
        return (stated != stated) == (mean != mean)
    return abs(stated - mean) <= _TOLERANCE * max(1.0, abs(mean))


HANDLERS: Final[dict[type, Any]] = {
    experience.ExperienceProduced: produced,
    experience.EvalScored: scored,
    step.EvalCompleted: eval_completed,
}
"""The function called with each record, by type of event."""
