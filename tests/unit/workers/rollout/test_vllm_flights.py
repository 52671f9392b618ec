"""The weights of each token, from what vLLM's worker says of its updates; vLLM itself is not needed for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import msgspec
import pytest

from rftd.ops.errors import RolloutError
from rftd.workers.engines.vllm.engine import VllmRolloutEngine
from rftd.workers.engines.vllm.flights import RequestFlight, WeightSwap
from rftd.workers.generation.engine import Generation, GenerationRequest, Sampling

REQUEST = GenerationRequest(id=UUID(int=1), prompt=(1,), sampling=Sampling(max_tokens=10))


def output(
    *,
    tokens: int = 10,
    scheduled_s: float = 5.0,
    finish: str = "length",
    logprob: float = -1.0,
    logprobs: int | None = None,
) -> Any:
    completion = SimpleNamespace(
        token_ids=list(range(tokens)),
        finish_reason=finish,
        stop_reason=None,
        logprobs=SimpleNamespace(logprobs=[logprob] * (tokens if logprobs is None else logprobs)),
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
    with pytest.raises(RolloutError, match="NaN at token 0"):
        spans(logprob=float("nan"))


def test_half_an_answer_is_an_error() -> None:
    with pytest.raises(RolloutError, match="10 tokens and 9 log-probabilities of 10"):
        spans(logprobs=9)
    both = msgspec.structs.replace(REQUEST, sampling=Sampling(max_tokens=10, processed_logprobs=True))
    with pytest.raises(RolloutError, match="10 tokens and 19 log-probabilities of 20"):
        RequestFlight(both, "0", (3, 0)).generation(output(logprobs=19))
    none = output()
    none.outputs[0].logprobs = None
    with pytest.raises(RolloutError, match="10 tokens and 0 log-probabilities"):
        RequestFlight(REQUEST, "0", (3, 0)).generation(none)
    watched = msgspec.structs.replace(REQUEST, watch=lambda tokens, logprobs: None)
    with pytest.raises(RolloutError, match="incomplete"):
        RequestFlight(watched, "0", (3, 0)).tell(output(logprobs=3))


@pytest.mark.anyio
async def test_half_an_answer_fails_its_request_and_not_the_others_of_its_group() -> None:
    llm = SimpleNamespace(errored=False)
    form = SimpleNamespace(check=lambda request: None)
    engine = VllmRolloutEngine(llm, cast(Any, None), SimpleNamespace(), form, slots=4)
    engine._accepting.set()
    outputs = [output(), output(logprobs=4), output()]

    async def last(flight: RequestFlight) -> Any:
        return outputs[int(flight.name)]

    engine._last_output = last  # type: ignore[method-assign]
    answers: dict[int, Generation | RolloutError] = {}
    async with engine.generate_each([REQUEST] * 3) as given:
        while some := await given.some():
            answers |= dict(some)
    assert [type(answers[number]) for number in range(3)] == [Generation, RolloutError, Generation]
