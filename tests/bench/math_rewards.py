"""Our math reward and math-verify on labelled pairs of a truth and an answer, by kind; prints JSON.

python -P tests/bench/math_rewards.py

The pairs are those of the unit tests. math-verify gets the truth and the answer in boxes, with its default settings:
of what was tried (boxes, dollars, bare text, letters of choices as strings) the way in which it is wrong least often.
Responses that mark no answer go to both as they are. Ends with status 1 unless ours is wrong less often in every kind
in which math-verify is wrong, never in any other, and accepts at most one in a hundred of the wrong answers.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

sys.path.insert(0, str(Path(__file__).parent))

from figures import tell

from rftd.workers.workflows.rewards.answer import accuracy

PAIRS: Final = Path(__file__).parents[1] / "unit" / "workers" / "rollout" / "rewards" / "math_pairs.tsv"
MOST_ACCEPTED: Final = 0.01
"""Of the wrong answers."""


class Pair(msgspec.Struct, frozen=True):
    """A truth, an answer, and whether the answer is right."""

    kind: str
    right: bool
    truth: str
    answer: str


class Tally(msgspec.Struct):
    """How often one judge was wrong about pairs of one kind."""

    refused_right: int = 0
    accepted_wrong: int = 0

    @property
    def wrong(self) -> int:
        """Both together."""
        return self.refused_right + self.accepted_wrong


class Kind(msgspec.Struct):
    """Both judges on one kind of pairs."""

    right: int = 0
    wrong: int = 0
    ours: Tally = msgspec.field(default_factory=Tally)
    math_verify: Tally = msgspec.field(default_factory=Tally)


def read_pairs() -> list[Pair]:
    """Every labelled pair."""
    rows = [line.split("\t") for line in PAIRS.read_text(encoding="utf-8").splitlines()]
    return [Pair(kind, verdict == "right", truth, answer) for kind, verdict, truth, answer in rows]


def response(pair: Pair) -> str:
    """The text that both judges read: the answer in a box; of an unmarked answer the text itself."""
    return pair.answer if pair.kind == "unmarked" else f"\\boxed{{{pair.answer}}}"


def theirs(pair: Pair, library: Any) -> bool:
    """True if math-verify accepts the answer."""
    gold = library.parse(f"\\boxed{{{pair.truth}}}", parsing_timeout=None)
    answer = library.parse(response(pair), parsing_timeout=None)
    return bool(library.verify(gold, answer, timeout_seconds=None))


def count(tally: Tally, pair: Pair, accepted: bool) -> None:
    """Adds one verdict."""
    tally.refused_right += pair.right and not accepted
    tally.accepted_wrong += accepted and not pair.right


def missed(kinds: dict[str, Kind]) -> list[str]:
    """The kinds and the share that miss the bar, in words; empty if none does."""
    lines = [
        f"{name}: ours is wrong {kind.ours.wrong} times, math-verify {kind.math_verify.wrong} times"
        for name, kind in kinds.items()
        if kind.ours.wrong and kind.ours.wrong >= kind.math_verify.wrong
    ]
    accepted = sum(kind.ours.accepted_wrong for kind in kinds.values())
    asked = sum(kind.wrong for kind in kinds.values())
    if accepted > MOST_ACCEPTED * asked:
        lines.append(f"ours accepts {accepted} of {asked} wrong answers")
    return lines


def main() -> None:
    """Judges every pair twice."""
    try:
        import math_verify
    except ImportError:
        sys.exit("this comparison needs the extra `math` (math-verify)")
    # It says at each call that its timeouts are off.
    logging.disable(logging.CRITICAL)
    kinds: dict[str, Kind] = {}
    for pair in read_pairs():
        kind = kinds.setdefault(pair.kind, Kind())
        kind.right += pair.right
        kind.wrong += not pair.right
        count(kind.ours, pair, accuracy(response(pair), pair.truth) == 1.0)
        count(kind.math_verify, pair, theirs(pair, math_verify))
    tell(kinds)
    for name in sorted(kinds):
        kind = kinds[name]
        ours = f"{kind.ours.refused_right} + {kind.ours.accepted_wrong}"
        others = f"{kind.math_verify.refused_right} + {kind.math_verify.accepted_wrong}"
        print(f"| {name} | {kind.right} + {kind.wrong} | {ours} | {others} |", file=sys.stderr)
    if lines := missed(kinds):
        sys.exit("the bar is missed: " + "; ".join(lines))


if __name__ == "__main__":
    main()
