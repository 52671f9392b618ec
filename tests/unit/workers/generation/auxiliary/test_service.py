"""A model that somebody serves: patience within a budget, errors that say what and never the key."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from random import Random
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rftd.ops import limits
from rftd.ops.clock import ManualClock
from rftd.ops.errors import ConfigError, RolloutError
from rftd.streams.spec.engines import AuxiliarySpec
from rftd.streams.spec.spec import SamplingSpec
from rftd.workers.datasets.message import Message
from rftd.workers.generation.auxiliary.auxiliary_model import AuxiliaryAnswer
from rftd.workers.generation.auxiliary.retries import Retries
from rftd.workers.generation.auxiliary.service import ModelService, service_address
from rftd.workers.generation.auxiliary.service_arguments import ServiceArgs

KEY = "sk-very-secret"
SPEC = AuxiliarySpec(
    name="judge", engine="external", model_name="m-1", base_url="http://judge.test/v1", api_key_env="JUDGE_KEY"
)
ASKED = (Message("user", "2+2?"),)
GOOD = {
    "choices": [{"message": {"role": "assistant", "content": "4"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 1},
}
BUSY = (408, 409, 425, 429, 500, 502, 503, 504, 529)


def answering(*answers: Callable[[], httpx.Response]) -> tuple[httpx.MockTransport, list[httpx.Request]]:
    """A service that gives these answers in turn, the last for ever, and the requests that it got."""
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return answers[min(len(seen), len(answers)) - 1]()

    return httpx.MockTransport(answer), seen


def good() -> httpx.Response:
    return httpx.Response(200, json=GOOD)


def status(code: int, **headers: str) -> Callable[[], httpx.Response]:
    return lambda: httpx.Response(code, json={"error": {"message": f"no: {KEY}"}}, headers=headers)


def unreachable() -> httpx.Response:
    raise httpx.ConnectError(f"refused {KEY}")


def ask(
    transport: httpx.AsyncBaseTransport,
    *,
    retries: Retries | None = None,
    clock: ManualClock | None = None,
    spec: AuxiliarySpec = SPEC,
    sampling: SamplingSpec | None = None,
    times: int = 1,
    **arguments: Any,
) -> list[AuxiliaryAnswer]:
    """Asks `times` questions at once; one rollout's budget holds for all of them."""

    async def asked() -> list[AuxiliaryAnswer]:
        address = service_address(spec, {"JUDGE_KEY": KEY})
        service = ModelService(
            spec, ServiceArgs(**arguments), address, clock=clock or ManualClock(), transport=transport
        )
        budget = retries or Retries(8, 300.0, Random(1))
        try:
            return await asyncio.gather(*(service.chat(ASKED, sampling, budget) for _ in range(times)))
        finally:
            await service.close()

    return asyncio.run(asked())


def test_a_question_and_its_answer() -> None:
    transport, seen = answering(good)
    spec = AuxiliarySpec(
        name="judge", engine="external", model_name="m-1", base_url="http://judge.test/v1/", max_response_tokens=64
    )
    given = ask(transport, spec=spec, sampling=SamplingSpec(temperature=0.0, max_tokens=128, stop=("\n",)))
    assert given == [AuxiliaryAnswer(text="4", finish="stop", prompt_tokens=5, tokens=1)]
    assert str(seen[0].url) == "http://judge.test/v1/chat/completions"
    assert seen[0].headers["authorization"] == "Bearer EMPTY"
    assert json.loads(seen[0].content) == {
        "model": "m-1",
        "messages": [{"role": "user", "content": "2+2?"}],
        "temperature": 0.0,
        "max_tokens": 64,
        "stop": ["\n"],
    }


FAULTS = st.lists(st.sampled_from([*(status(code) for code in BUSY), unreachable]), max_size=10)


@given(FAULTS, st.integers(0, 6), st.integers(0, 2**32))
def test_a_busy_service_is_asked_again_within_the_budget(
    faults: list[Callable[[], httpx.Response]], most: int, seed: int
) -> None:
    transport, seen = answering(*faults, good)
    clock = ManualClock()
    began_s = clock.monotonic_s()
    retries = Retries(most, 200.0, Random(seed))
    if len(faults) <= most:
        assert ask(transport, retries=retries, clock=clock)[0].text == "4"
    else:
        with pytest.raises(RolloutError) as refused:
            ask(transport, retries=retries, clock=clock)
        assert f"retried {most} times" in refused.value.what
        assert KEY not in str(refused.value)
    assert len(seen) == min(len(faults), most) + 1
    assert retries.used == len(seen) - 1
    assert clock.monotonic_s() - began_s == pytest.approx(retries.waited_s, abs=1e-3)
    assert retries.waited_s <= 200.0


@given(st.lists(st.one_of(st.none(), st.floats(0, 1000)), max_size=30), st.floats(0, 500), st.integers(0, 2**32))
def test_pauses_double_and_stay_within_what_a_rollout_waits(
    asked: list[float | None], wait_s: float, seed: int
) -> None:
    retries = Retries(1000, wait_s, Random(seed))
    for failures, after_s in enumerate(asked, 1):
        before_s = retries.waited_s
        pause_s = retries.pause(failures, after_s)
        if pause_s is None:
            assert retries.waited_s == before_s
            break
        longest = min(60.0, 0.5 * 2 ** (failures - 1))
        assert max(longest / 2, after_s or 0) <= pause_s <= max(longest, after_s or 0)
        assert retries.waited_s <= wait_s


@pytest.mark.parametrize(
    ("header", "pause_s"),
    [("7", 7.0), ("Tue, 14 Nov 2023 22:14:20 GMT", 60.0), ("soon", None), ("nan", None), ("-3", None)],
)
def test_a_service_says_when_to_come_back(header: str, pause_s: float | None) -> None:
    transport, _ = answering(status(429, **{"Retry-After": header}), good)
    retries = Retries(1, 100.0, Random(1))
    ask(transport, retries=retries)
    assert retries.waited_s == pytest.approx(pause_s) if pause_s else retries.waited_s <= 0.5


def test_a_service_that_asks_for_more_patience_than_there_is() -> None:
    transport, seen = answering(status(429, **{"Retry-After": "3600"}), good)
    with pytest.raises(RolloutError, match=r"answered 429: no: \*\*\*, and requests 3600 s more") as refused:
        ask(transport)
    assert "wait_s" in str(refused.value.fix)
    assert len(seen) == 1


def test_all_questions_of_a_rollout_share_its_budget() -> None:
    transport, seen = answering(status(503))
    with pytest.raises(RolloutError, match="503"):
        ask(transport, retries=Retries(5, 1000.0, Random(1)), times=3)
    assert len(seen) <= 5 + 3


def test_no_more_questions_at_once_than_the_file_allows() -> None:
    at_once = 0
    most = 0

    async def answer(request: httpx.Request) -> httpx.Response:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        for _ in range(5):
            await asyncio.sleep(0)
        at_once -= 1
        return good()

    spec = AuxiliarySpec(name="judge", model_name="m", base_url="http://judge.test/v1", concurrency=3)
    assert len(ask(httpx.MockTransport(answer), spec=spec, times=20)) == 20
    assert most == 3


@pytest.mark.parametrize("code", [401, 403])
def test_a_refused_key_is_named_by_its_variable(code: int) -> None:
    transport, seen = answering(status(code))
    with pytest.raises(RolloutError) as refused:
        ask(transport)
    assert "JUDGE_KEY" in refused.value.what
    assert KEY not in str(refused.value) + repr(refused.value) + str(refused.value.fix)
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "truncated"),
        (b"<html>", "malformed"),
        (b"[]", "Expected `object`"),
        (b"{}", "missing required field `choices`"),
        (b'{"choices": []}', "$.choices"),
        (b'{"choices": [{}]}', "$.choices[0]"),
        (b'{"choices": [{"message": {"content": null}}]}', "$.choices[0].message.content"),
        (b'{"choices": [{"message": {"content": "4"}}], "usage": {"completion_tokens": -1}}', "completion_tokens"),
    ],
)
def test_an_answer_of_another_shape_names_the_field(body: bytes, says: str) -> None:
    transport, seen = answering(lambda: httpx.Response(200, content=body))
    with pytest.raises(RolloutError) as refused:
        ask(transport)
    assert says in refused.value.what
    assert len(seen) == 1


def test_other_refusals_say_the_service_s_words_without_the_key() -> None:
    transport, seen = answering(status(404))
    with pytest.raises(RolloutError, match=r"answered 404: no: \*\*\*"):
        ask(transport)
    assert len(seen) == 1


def test_an_answer_without_end_is_cut_off() -> None:
    transport, _ = answering(lambda: httpx.Response(200, content=b" " * (limits.SERVICE_ANSWER_SIZE_BYTES + 1)))
    with pytest.raises(RolloutError, match="more than 4194304 bytes"):
        ask(transport)


def test_a_redirect_takes_the_key_nowhere() -> None:
    transport, seen = answering(lambda: httpx.Response(307, headers={"Location": "http://elsewhere.test/"}))
    with pytest.raises(RolloutError, match="answered 307"):
        ask(transport)
    assert [request.url.host for request in seen] == ["judge.test"]


def test_a_service_that_never_answers() -> None:
    async def answer(request: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(RolloutError, match=r"did not answer within 0\.01 s"):
        ask(httpx.MockTransport(answer), retries=Retries(1, 10.0, Random(1)), timeout_s=0.01)


def test_a_variable_that_is_not_set_is_named() -> None:
    with pytest.raises(ConfigError, match="JUDGE_KEY") as refused:
        service_address(SPEC, {})
    assert "export JUDGE_KEY" in str(refused.value.fix)
    by_name = AuxiliarySpec(name="judge", engine="external", model_name="m", base_url_env="JUDGE_URL")
    with pytest.raises(ConfigError, match="JUDGE_URL") as refused:
        service_address(by_name, {"JUDGE_URL": f"ftp://{KEY}"})
    assert KEY not in str(refused.value)
