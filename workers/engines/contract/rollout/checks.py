"""Checks of a rollout engine: promises of every engine, and further ones of engines running the model of their folder.

`CHECKS` and `MODEL_CHECKS` list them in the order of execution; the last one closes the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, TypeAlias

import msgspec

from rftd.ops.errors import RolloutError
from rftd.workers.engines.contract.rollout.bench import SLOTS, EngineBench, ask, is_idle, until
from rftd.workers.generation.engine import Generation, GenerationRequest, GroupEngine, RolloutEngine
from rftd.workers.weights.tensor_bytes import TensorBytes

Check: TypeAlias = Callable[[EngineBench], Awaitable[None]]
"""Function checking one promise of the bench's engine. Raises AssertionError."""


async def refuses(refused: Awaitable[object]) -> None:
    """Asserts that awaiting `refused` raises RolloutError."""
    try:
        await refused
    except RolloutError:
        return
    raise AssertionError("it was not refused")


def check_whole(generation: Generation) -> None:
    """Asserts that a response is complete.

    It has tokens, a log-probability of at most 0 for each, a finish of `stop` or `length`, and gapless spans over the
    tokens with ascending versions.
    """
    assert generation.tokens
    assert len(generation.logprobs) == len(generation.tokens)
    assert all(logprob <= 0 for logprob in generation.logprobs)
    assert generation.finish in ("stop", "length")
    assert generation.spans[0].start == 0
    assert generation.spans[-1].end == len(generation.tokens)
    for earlier, later in pairwise(generation.spans):
        assert earlier.end == later.start
        assert (earlier.version, earlier.generation) < (later.version, later.generation)


async def a_response_is_whole(bench: EngineBench) -> None:
    """Checks a response's length, spans and log-probabilities, and that the engine's counters count the request."""
    engine = await bench.ready()
    before = engine.stats()
    response = await engine.generate(ask(seed=5))
    check_whole(response)
    assert len(response.tokens) <= 12
    assert [(span.version, span.generation) for span in response.spans] == [engine.version]
    await until(lambda: engine.stats().requests_total == before.requests_total + 1 and is_idle(engine))
    await until(lambda: engine.stats().tokens_total >= before.tokens_total + len(response.tokens))


async def a_seed_gives_the_same_tokens(bench: EngineBench) -> None:
    """Checks that a seed gives the same tokens, alone and among simultaneous requests."""
    engine = await bench.ready()
    alone = await engine.generate(ask(seed=7))
    crowd = [ask(i, prompt=(50,) * (1 + i), seed=i, max_tokens=3 + i, min_tokens=0) for i in range(1, 10)]
    responses = await asyncio.gather(*(engine.generate(request) for request in [*crowd[:5], ask(seed=7), *crowd[5:]]))
    for response in responses:
        check_whole(response)
    assert responses[5].tokens == alone.tokens
    assert all(
        abs(crowded - single) < 1e-4 for crowded, single in zip(responses[5].logprobs, alone.logprobs, strict=True)
    )


async def what_is_watched_is_what_is_drawn(bench: EngineBench) -> None:
    """Checks that tokens reported to `watch` are a beginning of the response, and that watching changes no token.
    Reporting is optional.
    """
    engine = await bench.ready()
    reported: dict[int, tuple[list[int], list[float]]] = {number: ([], []) for number in range(3)}

    def watched(number: int) -> GenerationRequest:
        tokens, logprobs = reported[number]

        def watch(new: Sequence[int], their_logprobs: Sequence[float]) -> None:
            tokens.extend(new)
            logprobs.extend(their_logprobs)

        return msgspec.structs.replace(ask(number, seed=number, max_tokens=40, min_tokens=40), watch=watch)

    responses = await asyncio.gather(*(engine.generate(watched(number)) for number in reported))
    for (tokens, logprobs), response in zip(reported.values(), responses, strict=True):
        assert tuple(tokens) == response.tokens[: len(tokens)]
        assert tuple(logprobs) == response.logprobs[: len(logprobs)]
    unwatched = await asyncio.gather(*(engine.generate(ask(n, seed=n, max_tokens=40, min_tokens=40)) for n in reported))
    assert [response.tokens for response in unwatched] == [response.tokens for response in responses]


async def a_watch_is_told_before_the_response_is_complete(bench: EngineBench) -> None:
    """Checks that tokens are reported while later ones are drawn, and none after the request was cancelled."""
    engine = await bench.ready()
    reported: list[int] = []

    def hang_up(new: Sequence[int], _: Sequence[float]) -> None:
        reported.extend(new)
        drawing.cancel()

    request = msgspec.structs.replace(ask(max_tokens=80, min_tokens=80), watch=hang_up)
    drawing = asyncio.ensure_future(engine.generate(request))
    await asyncio.wait([drawing])
    assert drawing.cancelled()
    count = len(reported)
    assert 0 < count < 80
    await until(lambda: is_idle(engine))
    assert len(reported) == count


async def weights_change_in_flight(bench: EngineBench) -> None:
    """Checks that running requests continue across a swap of weights, that spans name the weights of each token, and
    that later requests use the new weights.
    """
    engine = await bench.ready()
    old = engine.version
    requests = [ask(i, seed=i, max_tokens=90, min_tokens=90) for i in range(3)]
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(engine.generate(request)) for request in requests]
        await until(lambda: engine.stats().running > 0 or all(task.done() for task in running))
        new = (await bench.load(1), 0)
    for task in running:
        response = task.result()
        check_whole(response)
        assert {(span.version, span.generation) for span in response.spans} <= {old, new}
    assert [(span.version, span.generation) for span in (await engine.generate(ask())).spans] == [new]


async def weights_that_are_not_those_announced_are_refused(bench: EngineBench) -> None:
    """Checks that weights unlike their announcement are refused, and that the old ones stay in use."""
    engine = await bench.ready()
    before = engine.version
    right = bench.published(bench.weights(1))
    unrelated = bench.published({"w": TensorBytes("float32", (1,), memoryview(bytes(4)))})
    for changes in (
        {"checksum": unrelated.checksum},
        {"manifest": unrelated.manifest},
        {"version": right.version + 7},
        {"path": right.path + "-absent"},
    ):
        await refuses(engine.load_weights(msgspec.structs.replace(right, **changes)))
        assert engine.version == before
    assert [span.version for span in (await engine.generate(ask())).spans] == [before[0]]
    assert await engine.load_weights(right) == right.checksum


async def cancelling_frees_the_slot(bench: EngineBench) -> None:
    """Checks that cancelling running and waiting requests makes the engine idle, and that later requests are served."""
    engine = await bench.ready()
    requests = [ask(i, max_tokens=90, min_tokens=90) for i in range(3 * SLOTS)]
    tasks = [asyncio.ensure_future(engine.generate(request)) for request in requests]
    await until(lambda: engine.stats().running > 0)
    for task in tasks:
        task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert any(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
    assert all(isinstance(outcome, asyncio.CancelledError | Generation) for outcome in outcomes)
    await until(lambda: is_idle(engine))
    check_whole(await engine.generate(ask()))


async def closing_ends_what_runs(bench: EngineBench) -> None:
    """Checks that closing ends running requests with RolloutError and refuses later ones, and that a second close has
    no effect.
    """
    engine = await bench.ready()
    requests = [ask(i, max_tokens=90, min_tokens=90) for i in range(SLOTS + 2)]
    tasks = [asyncio.ensure_future(engine.generate(request)) for request in requests]
    await asyncio.sleep(0)
    await bench.close()
    await engine.close()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(outcome, RolloutError) for outcome in outcomes), outcomes
    await refuses(engine.generate(ask()))


async def a_response_is_as_long_as_asked_for(bench: EngineBench) -> None:
    """Checks that a response has at least `min_tokens`, and with its prompt at most the model's length."""
    engine = await bench.ready()
    exact = await engine.generate(ask(seed=5))
    assert len(exact.tokens) == 12
    assert exact.finish == "length"
    full = await engine.generate(ask(prompt=(30,) * (bench.max_model_len - 6), max_tokens=50, min_tokens=50))
    assert len(full.tokens) == 6
    assert full.finish == "length"
    assert len((await engine.generate(ask(max_tokens=1, min_tokens=0))).tokens) == 1
    assert (await engine.generate(ask(seed=8))).tokens != exact.tokens


def impossible(max_model_len: int) -> Mapping[str, GenerationRequest]:
    """Returns requests that can never run, by the reason."""
    return {
        "empty": ask(1, prompt=()),
        "too long": ask(2, prompt=(30,) * max_model_len),
        "unknown token": ask(3, prompt=(1, 100_000)),
        "no tokens": ask(4, max_tokens=0, min_tokens=0),
        "no mass": ask(5, top_p=0.0),
        "unknown bias": ask(6, logit_bias=[[100_000, 1.0]]),
    }


async def a_request_that_can_never_run_is_refused(bench: EngineBench) -> None:
    """Checks that each impossible request is refused, without effect on simultaneous possible ones."""
    engine = await bench.ready()
    alone = [await engine.generate(ask(seed=seed)) for seed in (1, 2)]
    never = impossible(bench.max_model_len).values()
    for request in never:
        await refuses(engine.generate(request))
    requests = [ask(7, seed=1), *never, ask(8, seed=2)]
    outcomes = await _outcomes_together(engine, requests)
    first, *refused, last = (outcomes[number] for number in range(len(requests)))
    assert all(isinstance(outcome, RolloutError) for outcome in refused), refused
    assert [response.tokens for response in (first, last) if isinstance(response, Generation)] == [
        response.tokens for response in alone
    ]


async def _outcomes_together(
    engine: RolloutEngine, requests: list[GenerationRequest]
) -> dict[int, Generation | BaseException]:
    """Makes requests simultaneously, by `generate_each` if the engine has it; returns responses or errors by number."""
    outcomes: dict[int, Generation | BaseException] = {}
    if isinstance(engine, GroupEngine):
        async with engine.generate_each(requests) as answers:
            while finished := await answers.some():
                outcomes |= dict(finished)
        return outcomes
    gathered = await asyncio.gather(*(engine.generate(request) for request in requests), return_exceptions=True)
    return dict(enumerate(gathered))


async def a_stop_text_ends_a_response_and_stays_in_it(bench: EngineBench) -> None:
    """Checks that a stop text ends a response and stays in it, but never before `min_tokens`."""
    engine = await bench.ready()
    drawn = [await engine.generate(ask(seed=seed, max_tokens=30, min_tokens=0)) for seed in range(8)]
    whole = next(response.tokens for response in drawn if response.finish == "length")
    at = next(i for i in range(3, 30) if whole[i] >= 11 and whole[i] not in whole[:i])
    seed = [response.tokens for response in drawn].index(whole)
    text = bench.tokenizer.decode(list(whole[at - 1 : at + 1]))
    cut = await engine.generate(ask(seed=seed, max_tokens=30, min_tokens=0, stop=["never here", text]))
    assert cut.tokens == whole[: at + 1]
    assert cut.finish == "stop"
    late = await engine.generate(ask(seed=seed, max_tokens=30, min_tokens=at + 2, stop=[text]))
    assert len(late.tokens) >= at + 2


async def an_end_of_sequence_may_be_gone_beyond(bench: EngineBench) -> None:
    """Checks that an end of sequence ends a response and stays in it, and that `ignore_eos` continues beyond it."""
    engine = await bench.ready()
    end = bench.tokenizer.eos_token_id
    ending: dict[str, Any] = {"logit_bias": [[end, 100.0]], "min_tokens": 2}
    stopped = await engine.generate(ask(**ending))
    assert (len(stopped.tokens), stopped.tokens[-1], stopped.finish) == (3, end, "stop")
    going_on = await engine.generate(ask(**ending, ignore_eos=True))
    assert (going_on.tokens[2:], going_on.finish) == ((end,) * 10, "length")


async def penalties_see_their_own_text_alone(bench: EngineBench) -> None:
    """Checks that each of several simultaneous requests with penalties gets the response of the same request made
    alone.
    """
    engine = await bench.ready()
    penalised: dict[str, Any] = {"temperature": 0.7, "presence_penalty": 0.5, "min_p": 0.02}
    requests = [ask(i, seed=i % 3, repetition_penalty=1.0 + i % 2, **penalised) for i in range(6)]
    alone = [(await engine.generate(request)).tokens for request in requests]
    together = await asyncio.gather(*(engine.generate(request) for request in requests))
    assert [response.tokens for response in together] == alone
    assert len(set(alone)) == 6


async def new_weights_are_those_that_draw(bench: EngineBench) -> None:
    """Checks that tokens and log-probabilities change with a swap of weights, and return to the first ones with the
    swap back.
    """
    engine = await bench.ready()
    first = await engine.generate(ask(temperature=0.0))
    await bench.load(1)
    second = await engine.generate(ask(temperature=0.0))
    assert (second.tokens, second.logprobs) != (first.tokens, first.logprobs)
    await bench.load(0)
    again = await engine.generate(ask(temperature=0.0))
    assert again.tokens == first.tokens
    assert all(
        abs(repeated - original) < 1e-4 for repeated, original in zip(again.logprobs, first.logprobs, strict=True)
    )


async def weights_of_another_model_or_broken_ones_are_refused(bench: EngineBench) -> None:
    """Checks that unusable weights are refused before anything changes: the old ones draw the same tokens as before."""
    engine = await bench.ready()
    version = engine.version
    before = await engine.generate(ask(temperature=0.0))
    whole = dict(bench.weights(1))
    name = next(name for name in sorted(whole) if name.endswith("norm.weight"))
    size = len(whole[name].data)
    half = (whole[name].shape[0] // 2,)
    for wrong in (
        {"w": TensorBytes("float32", (3,), memoryview(bytes(12)))},
        {**whole, "unknown": whole[name]},
        {tensor_name: tensor for tensor_name, tensor in whole.items() if tensor_name != name},
        {**whole, name: TensorBytes(whole[name].dtype, half, whole[name].data[: size // 2])},
        # All bits set are NaN in every floating format.
        {**whole, name: TensorBytes(whole[name].dtype, whole[name].shape, memoryview(b"\xff" * size))},
    ):
        await refuses(engine.load_weights(bench.published(wrong)))
        assert engine.version == version
    after = await engine.generate(ask(temperature=0.0))
    assert (after.tokens, after.spans) == (before.tokens, before.spans)


CHECKS: Final[tuple[Check, ...]] = (
    a_response_is_whole,
    a_seed_gives_the_same_tokens,
    what_is_watched_is_what_is_drawn,
    weights_change_in_flight,
    weights_that_are_not_those_announced_are_refused,
    cancelling_frees_the_slot,
    closing_ends_what_runs,
)
"""Promises of every engine. The last check closes the engine: a later check opens a new one."""

MODEL_CHECKS: Final[tuple[Check, ...]] = (
    a_response_is_as_long_as_asked_for,
    a_request_that_can_never_run_is_refused,
    a_stop_text_ends_a_response_and_stays_in_it,
    an_end_of_sequence_may_be_gone_beyond,
    penalties_see_their_own_text_alone,
    new_weights_are_those_that_draw,
    a_watch_is_told_before_the_response_is_complete,
    weights_of_another_model_or_broken_ones_are_refused,
    *CHECKS,
)
"""Promises of an engine running the model of its folder."""
