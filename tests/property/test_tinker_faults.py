"""Some faults of a service; `make torture-tinker` strikes ten thousand times. What it must find is planted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from property.torture_tinker import FAULTS, struck
from synthetic.models.tinker_rehearsal import Rehearsal, Run

from rftd.workers.engines.tinker import access
from rftd.workers.engines.tinker.answers import DrawnResponse
from rftd.workers.engines.tinker.service import SampleAnswer


@pytest.mark.slow
def test_whatever_strikes_the_books_balance(tmp_path: Path) -> None:
    counts = struck(150, tmp_path)
    assert len(counts) == len(FAULTS)


def _executed_anew(service: Rehearsal, run: str, _number: int, work: Callable[[Run], Any]) -> Any:
    """A client that repeats under a number of its own: the service knows no repetition."""
    return work(service.runs[run])


def _believed(answer: SampleAnswer, *, max_tokens: int) -> DrawnResponse:
    """Takes whatever shape a response has."""
    count = min(len(answer.tokens), len(answer.logprobs), max_tokens)
    return DrawnResponse(tuple(answer.tokens[:count]), tuple(answer.logprobs[:count]), answer.stop_reason)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "bug", "found"),
    [
        ("synthetic.models.tinker_rehearsal.Rehearsal.execute", _executed_anew, "lost or taken twice|given twice"),
        ("rftd.workers.engines.tinker.rollout.engine.drawn_of", _believed, "responses .*are of other"),
        (
            "rftd.workers.engines.tinker.trainer.engine.path_of",
            lambda answer, *_: answer,
            "was forgotten|no response in so many tries",
        ),
    ],
)
def test_a_planted_bug_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, bug: Callable[..., Any], found: str
) -> None:
    monkeypatch.setattr(place, bug)
    with pytest.raises(AssertionError, match=found):
        struck(400, tmp_path)


@pytest.mark.slow
def test_a_key_that_is_shown_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What is to be masked is looked for in vain.
    monkeypatch.setattr(access, "MASK", "tml-rehearsal-key")
    with pytest.raises(AssertionError, match="the key is shown"):
        struck(400, tmp_path)
