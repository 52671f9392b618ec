"""The weights of each token, from what vLLM's worker says of its updates; vLLM itself is not needed for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from rftd.ops.errors import RolloutError
from rftd.workers.rollout.engine import GenerationRequest, Sampling
from rftd.workers.rollout.engines.vllm.flights import RequestFlight, WeightSwap

REQUEST = GenerationRequest(id=UUID(int=1), prompt=(1,), sampling=Sampling(max_tokens=10))


def output(*, tokens: int = 10, scheduled_s: float = 5.0, finish: str = "length", logprob: float = -1.0) -> Any:
    completion = SimpleNamespace(
        token_ids=list(range(tokens)),
        finish_reason=finish,
        stop_reason=None,
        logprobs=SimpleNamespace(logprobs=[logprob] * tokens),
    )
    return SimpleNamespace(outputs=[completion], metrics=SimpleNamespace(scheduled_ts=scheduled_s))


def spans(*swaps: WeightSwap, **given: Any) -> list[tuple[int, int, int]]:
    found = RequestFlight(REQUEST, "0", (3, 0), list(swaps)).generation(output(**given))
    return [(span.version, span.start, span.end) for span in found.spans]


def test_an_update_marks_the_token_that_was_next() -> None:
    assert spans() == [(3, 0, 10)]
    assert spans(WeightSwap((4, 0), 9.0, 4)) == [(3, 0, 4), (4, 4, 10)]
    assert spans(WeightSwap((4, 0), 9.0, 4), WeightSwap((5, 0), 9.1, 7)) == [(3, 0, 4), (4, 4, 7), (5, 7, 10)]


def test_weights_that_drew_nothing_have_no_span() -> None:
    assert spans(WeightSwap((4, 0), 9.0, 4), WeightSwap((5, 0), 9.1, 4)) == [(3, 0, 4), (5, 4, 10)]
    assert spans(WeightSwap((4, 0), 9.0, 0)) == [(4, 0, 10)]


def test_a_step_beyond_the_last_token_marks_nothing() -> None:
    assert spans(WeightSwap((4, 0), 9.0, 11)) == [(3, 0, 10)]


def test_a_request_that_the_worker_did_not_have_had_not_begun_or_was_over() -> None:
    assert spans(WeightSwap((4, 0), 9.0, None), scheduled_s=9.5) == [(4, 0, 10)]
    assert spans(WeightSwap((4, 0), 9.0, None), scheduled_s=8.5) == [(3, 0, 10)]


def test_what_is_no_response_is_an_error() -> None:
    with pytest.raises(RolloutError, match="'abort'"):
        spans(finish="abort")
    with pytest.raises(RolloutError, match="no number at token 0"):
        spans(logprob=float("nan"))
