"""Checks of the service's answers against the requests: an unexpected shape is refused, with the field's name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rftd.ops.errors import WorkError
from rftd.workers.engines.tinker.service import PassAnswer, SampleAnswer, TokenRow

_SHOWN_CHARS: Final = 80
"""Maximum characters of an answer quoted in an error."""
_STOPS: Final = ("stop", "length")
"""Accepted reasons for the end of a response."""


class DrawnResponse(NamedTuple):
    """A response of the service after all checks of tokens and log-probabilities."""

    tokens: tuple[int, ...]  # [R]
    """Ids of the response's tokens."""
    logprobs: tuple[float, ...]  # [R]
    """Log-probability of each token."""
    finish: str
    """Reason for the response's end, `stop` or `length`."""


def logprobs_of(answer: PassAnswer, rows: Sequence[TokenRow]) -> list[NDArray[np.float32]]:
    """Returns the log-probability of each target of each row  # [T - 1] each. Raises WorkError for another shape."""
    output_rows = answer.rows
    if not isinstance(output_rows, Sequence) or len(output_rows) != len(rows):
        raise _shape_error("loss_fn_outputs", f"has {_length(output_rows)} entries for {len(rows)} sequences")
    return [
        _numbers(
            output_row.get("logprobs") if isinstance(output_row, Mapping) else None,
            number,
            "logprobs",
            len(row.targets),
        )
        for number, (output_row, row) in enumerate(zip(output_rows, rows, strict=True))
    ]


def loss_sum_of(answer: PassAnswer) -> float:
    """Returns the loss computed by the service. Raises WorkError if the answer has none."""
    reported = answer.metrics.get("loss:sum") if isinstance(answer.metrics, Mapping) else None
    losses = [output_row.get("elementwise_loss") for output_row in answer.rows if isinstance(output_row, Mapping)]
    if reported is None and losses and None not in losses:
        # A service without sums returns each token's loss.
        return sum(
            float(np.sum(_numbers(token_losses, number, "elementwise_loss")))
            for number, token_losses in enumerate(losses)
        )
    if isinstance(reported, bool) or not isinstance(reported, int | float):
        raise _shape_error("metrics['loss:sum']", f"is {_shown(reported)}, and not a number")
    return float(reported)


def path_of(answer: Any, run: str, name: str) -> str:
    """Returns the path of a run's saved state or weights. Raises WorkError for any other path."""
    if not isinstance(answer, str) or not answer.startswith("tinker://"):
        raise _shape_error("path", f"is {_shown(answer)}, and not a tinker:// path")
    # Another path would be trained on, or generated with, silently; an incomplete path would fail only when needed.
    if answer.removeprefix("tinker://").partition("/")[0] != run or answer.rpartition("/")[2] != name:
        raise _shape_error("path", f"is {_shown(answer)}, and {name!r} of the run {run!r} was saved")
    return answer


def drawn_of(answer: SampleAnswer, *, max_tokens: int) -> DrawnResponse:
    """Checks an answer to a sampling request and returns the response. Raises WorkError for another shape."""
    tokens = answer.tokens
    if not _is_list(tokens) or not all(type(token) is int and token >= 0 for token in tokens):
        raise _shape_error("sequences[0].tokens", f"is {_shown(tokens)}, and not a list of token ids")
    if not 1 <= len(tokens) <= max_tokens:
        raise _shape_error("sequences[0].tokens", f"has {len(tokens)} tokens instead of 1 to {max_tokens}")
    logprobs = answer.logprobs
    if not _is_list(logprobs) or len(logprobs) != len(tokens):
        raise _shape_error("sequences[0].logprobs", f"has {_length(logprobs)} numbers for {len(tokens)} tokens")
    if not all(type(logprob) in (int, float) and math.isfinite(logprob) and logprob <= 1e-3 for logprob in logprobs):
        raise _shape_error("sequences[0].logprobs", "has a number that is not a log-probability")
    if answer.stop_reason not in _STOPS:
        raise _shape_error("sequences[0].stop_reason", f"is {_shown(answer.stop_reason)}, and not stop or length")
    # Rounding may leave the log-probability of a certain token a little above 0.
    return DrawnResponse(
        tuple(tokens), tuple(min(0.0, float(logprob)) for logprob in logprobs), str(answer.stop_reason)
    )


def _numbers(numbers: Any, row: int, name: str, count: int | None = None) -> NDArray[np.float32]:
    """Returns a list of the answer as an array  # [count], any length if None. Raises WorkError for another shape."""
    field = f"loss_fn_outputs[{row}].{name}"
    try:
        array = np.asarray(numbers, np.float32)
    except (TypeError, ValueError):
        raise _shape_error(field, f"is {_shown(numbers)}, and not a list of numbers") from None
    if array.ndim != 1 or count not in (None, len(array)):
        expected = "a row of numbers was expected" if count is None else f"{count} targets were sent"
        raise _shape_error(field, f"has the shape {list(array.shape)}, and {expected}")
    return array


def _is_list(answer: Any) -> bool:
    """True for a sequence other than text or bytes."""
    return isinstance(answer, Sequence) and not isinstance(answer, str | bytes)


def _length(answer: Any) -> str:
    """Returns the length of a list as text, for an error; "no list of" for anything else."""
    return str(len(answer)) if _is_list(answer) else "no list of"


def _shown(answer: Any) -> str:
    """Returns the beginning of an answer's text, for an error."""
    text = repr(answer)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def _shape_error(field: str, problem: str) -> WorkError:
    """Builds the error for an answer whose field has an unexpected shape."""
    return WorkError(
        f"the Tinker service gave an answer of an unexpected shape: {field} {problem}",
        field=field,
        fix="the answer was discarded; if this happens again, install a release of tinker that fits the service",
    )
