"""Answers of the service, held against what was asked: another shape is refused, and the field named."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rftd.ops.errors import WorkError
from rftd.workers.engines.tinker.service import PassAnswer, SampleAnswer, TokenRow

_SHOWN_CHARS: Final = 80
_STOPS: Final = ("stop", "length")


class DrawnResponse(NamedTuple):
    """A response."""

    tokens: tuple[int, ...]  # [R]
    logprobs: tuple[float, ...]  # [R]
    finish: str


def logprobs_of(answer: PassAnswer, rows: Sequence[TokenRow]) -> list[NDArray[np.float32]]:
    """The log-probability of each target of each row  # [T - 1] each. Raises WorkError for another shape."""
    found = answer.rows
    if not isinstance(found, Sequence) or len(found) != len(rows):
        raise _other("loss_fn_outputs", f"has {_length(found)} entries for {len(rows)} sequences")
    return [
        _numbers(each.get("logprobs") if isinstance(each, Mapping) else None, number, "logprobs", len(row.targets))
        for number, (each, row) in enumerate(zip(found, rows, strict=True))
    ]


def loss_sum_of(answer: PassAnswer) -> float:
    """The loss that the service computed. Raises WorkError if it says none."""
    found = answer.metrics.get("loss:sum") if isinstance(answer.metrics, Mapping) else None
    losses = [each.get("elementwise_loss") for each in answer.rows if isinstance(each, Mapping)]
    if found is None and losses and None not in losses:
        # A service that sums nothing says each token's.
        return sum(float(np.sum(_numbers(each, number, "elementwise_loss"))) for number, each in enumerate(losses))
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise _other("metrics['loss:sum']", f"is {_shown(found)}, and not a number")
    return float(found)


def path_of(answer: Any, run: str, name: str) -> str:
    """The path of what a run has saved under a name. Raises WorkError for another one."""
    if not isinstance(answer, str) or not answer.startswith("tinker://"):
        raise _other("path", f"is {_shown(answer)}, and not a tinker:// path")
    # Another path would be trained on, or generated with, without a word; a part of it fails when it is needed.
    if answer.removeprefix("tinker://").partition("/")[0] != run or answer.rpartition("/")[2] != name:
        raise _other("path", f"is {_shown(answer)}, and {name!r} of the run {run!r} was saved")
    return answer


def drawn_of(answer: SampleAnswer, *, max_tokens: int) -> DrawnResponse:
    """The response. Raises WorkError for another shape."""
    tokens = answer.tokens
    if not _is_list(tokens) or not all(type(each) is int and each >= 0 for each in tokens):
        raise _other("sequences[0].tokens", f"is {_shown(tokens)}, and not a list of token ids")
    if not 1 <= len(tokens) <= max_tokens:
        raise _other("sequences[0].tokens", f"has {len(tokens)} tokens, and 1 to {max_tokens} were asked for")
    logprobs = answer.logprobs
    if not _is_list(logprobs) or len(logprobs) != len(tokens):
        raise _other("sequences[0].logprobs", f"has {_length(logprobs)} numbers for {len(tokens)} tokens")
    if not all(type(each) in (int, float) and math.isfinite(each) and each <= 1e-3 for each in logprobs):
        raise _other("sequences[0].logprobs", "holds what is no log-probability")
    if answer.stop_reason not in _STOPS:
        raise _other("sequences[0].stop_reason", f"is {_shown(answer.stop_reason)}, and not stop or length")
    # Rounding may leave a certain token's log-probability a little above 0.
    return DrawnResponse(tuple(tokens), tuple(min(0.0, float(each)) for each in logprobs), str(answer.stop_reason))


def _numbers(found: Any, row: int, name: str, count: int | None = None) -> NDArray[np.float32]:
    field = f"loss_fn_outputs[{row}].{name}"
    try:
        array = np.asarray(found, np.float32)
    except (TypeError, ValueError):
        raise _other(field, f"is {_shown(found)}, and not a list of numbers") from None
    if array.ndim != 1 or count not in (None, len(array)):
        due = "a row of numbers is due" if count is None else f"{count} targets were sent"
        raise _other(field, f"has the shape {list(array.shape)}, and {due}")
    return array


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _length(value: Any) -> str:
    return str(len(value)) if _is_list(value) else "no list of"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def _other(field: str, what: str) -> WorkError:
    return WorkError(
        f"the Tinker service gave an answer of another shape: {field} {what}",
        field=field,
        fix="nothing was taken from it; if it comes again, install a release of tinker that fits the service",
    )
