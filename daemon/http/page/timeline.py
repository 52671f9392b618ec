"""The shares of training and of each wait in a timeline, in words, and the longest waits."""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

from rftd.daemon.cli.output.quantity import lasting
from rftd.daemon.http.page.formats import percent
from rftd.daemon.http.views.timeline import IdleSpan, Timeline

_HOLDS: Final = {
    "experiences": "waited for experiences",
    "prepares": "published, saved or assembled",
    "paused": "was paused",
    "no_trainer": "was not running",
}
"""Reason of a span without training in words, by its name."""
DROPPED: Final = frozenset(("retired", "late"))
"""States of rollouts that are not trained; as `dropped` in timeline.js."""
_SHOWN: Final = 10
"""Maximum number of spans without training on the page."""
_SHORT_S: Final = 10.0
"""Seconds below which a wait is written with its fraction."""


class TrainerWait(NamedTuple):
    """A span without training, as shown on the page."""

    begun_ns: int
    """Begin of the span, Unix time in nanoseconds."""
    lasting: str
    """Length of the span in words."""
    text: str
    """Reason of the wait, in words."""
    step: int
    """The step trained after the span."""


def sentence_of(timeline: Timeline) -> str:
    """Returns the trainer's time by activity, and the drops among the rollouts, in words."""
    whole_ns = timeline.to_ns - timeline.from_ns
    trained_ns = sum(span.busy * _within(timeline, span.begun_ns, span.ended_ns) for span in timeline.steps)
    if not timeline.steps and not timeline.rollouts and not timeline.sampled:
        return "Nothing was sampled or trained in this time."
    waits: Counter[str] = Counter()
    for idle in timeline.idle:
        waits[idle.hold] += _within(timeline, idle.begun_ns, idle.ended_ns)
    parts = [f"trained {percent(trained_ns / whole_ns)} of the time"]
    parts += [f"{_HOLDS[hold]} {percent(length / whole_ns)}" for hold, length in waits.most_common()]
    sentences = [f"In {lasting(whole_ns / 1e9)} the trainer {', '.join(parts)}."]
    if timeline.rollouts:
        states = Counter(laned.rollout.state for laned in timeline.rollouts)
        dropped = sum(number for state, number in states.items() if state in DROPPED)
        sentences.append(
            f"Of {len(timeline.rollouts):,} rollouts {dropped:,} were dropped, {states['failed']:,} failed."
        )
    elif timeline.sampled:
        sentences.append("Rollouts are too many to be drawn one by one: choose a shorter time.")
    return " ".join(sentences)


def longest_waits(timeline: Timeline) -> list[TrainerWait]:
    """Returns the longest spans without training, the longest first."""
    longest = sorted(timeline.idle, key=lambda idle: idle.begun_ns - idle.ended_ns)[:_SHOWN]
    return [_wait(idle) for idle in longest]


def _wait(idle: IdleSpan) -> TrainerWait:
    seconds = (idle.ended_ns - idle.begun_ns) / 1e9
    return TrainerWait(
        idle.begun_ns, f"{seconds:.2f} s" if seconds < _SHORT_S else lasting(seconds), idle.text, idle.step
    )


def _within(timeline: Timeline, begun_ns: int, ended_ns: int) -> int:
    """Returns the nanoseconds of a span within the timeline."""
    return max(0, min(ended_ns, timeline.to_ns) - max(begun_ns, timeline.from_ns))
