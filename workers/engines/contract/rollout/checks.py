"""The checks: what every rollout engine promises, and what one promises that runs the model of its folder.

They are ordered so that a failed one comes after those that it rests on.
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


async def refuses(refused: Awaitable[object]) -> None:
    """Returns if it raises RolloutError."""
    try:
        await refused
    except RolloutError:
        return
    raise AssertionError("it was not refused")


def check_whole(found: Generation) -> None:
    """A response has a log-probability for each token, and spans that cover them without gap, older weights first."""
    assert found.tokens
    assert len(found.logprobs) == len(found.tokens)
    assert all(logprob <= 0 for logprob in found.logprobs)
    assert found.finish in ("stop", "length")
    assert found.spans[0].start == 0
    assert found.spans[-1].end == len(found.tokens)
    for one, two in pairwise(found.spans):
        assert one.end == two.start
        assert (one.version, one.generation) < (two.version, two.generation)


async def a_response_is_whole(bench: EngineBench) -> None:
    """It has the asked-for length at most, and is of the weights in use; the counters count it."""
    engine = await bench.ready()
    before = engine.stats()
    found = await engine.generate(ask(seed=5))
    check_whole(found)
    assert len(found.tokens) <= 12
    assert [(span.version, span.generation) for span in found.spans] == [engine.version]
    await until(lambda: engine.stats().requests_total == before.requests_total + 1 and is_idle(engine))
    await until(lambda: engine.stats().tokens_total >= before.tokens_total + len(found.tokens))


async def a_seed_gives_the_same_tokens(bench: EngineBench) -> None:
    """Alone and beside neighbours, whatever was asked before."""
    engine = await bench.ready()
    alone = await engine.generate(ask(seed=7))
    crowd = [ask(i, prompt=(50,) * (1 + i), seed=i, max_tokens=3 + i, min_tokens=0) for i in range(1, 10)]
    found = await asyncio.gather(*(engine.generate(request) for request in [*crowd[:5], ask(seed=7), *crowd[5:]]))
    for each in found:
        check_whole(each)
    assert found[5].tokens == alone.tokens
    assert all(abs(one - two) < 1e-4 for one, two in zip(found[5].logprobs, alone.logprobs, strict=True))


async def what_is_watched_is_what_is_drawn(bench: EngineBench) -> None:
    """The tokens are told in order, from the first one on; an engine that tells nothing is one that cannot."""
    engine = await bench.ready()
    told: dict[int, tuple[list[int], list[float]]] = {number: ([], []) for number in range(3)}

    def watched(number: int) -> GenerationRequest:
        tokens, logprobs = told[number]

        def watch(new: Sequence[int], their_logprobs: Sequence[float]) -> None:
            tokens.extend(new)
            logprobs.extend(their_logprobs)

        return msgspec.structs.replace(ask(number, seed=number, max_tokens=40, min_tokens=40), watch=watch)

    found = await asyncio.gather(*(engine.generate(watched(number)) for number in told))
    for (tokens, logprobs), each in zip(told.values(), found, strict=True):
        assert tuple(tokens) == each.tokens[: len(tokens)]
        assert tuple(logprobs) == each.logprobs[: len(logprobs)]
    unwatched = await asyncio.gather(*(engine.generate(ask(n, seed=n, max_tokens=40, min_tokens=40)) for n in told))
    assert [each.tokens for each in unwatched] == [each.tokens for each in found]


async def a_watch_is_told_before_the_response_is_complete(bench: EngineBench) -> None:
    """An engine that runs a model tells a token while the next ones are drawn, and none after a hang-up."""
    engine = await bench.ready()
    told: list[int] = []

    def hang_up(new: Sequence[int], _: Sequence[float]) -> None:
        told.extend(new)
        drawing.cancel()

    request = msgspec.structs.replace(ask(max_tokens=80, min_tokens=80), watch=hang_up)
    drawing = asyncio.ensure_future(engine.generate(request))
    await asyncio.wait([drawing])
    assert drawing.cancelled()
    count = len(told)
    assert 0 < count < 80
    await until(lambda: is_idle(engine))
    assert len(told) == count


async def weights_change_in_flight(bench: EngineBench) -> None:
    """What runs goes on, and its spans say which weights drew what; what is asked for later is of the new ones."""
    engine = await bench.ready()
    old = engine.version
    asked = [ask(i, seed=i, max_tokens=90, min_tokens=90) for i in range(3)]
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(engine.generate(request)) for request in asked]
        await until(lambda: engine.stats().running > 0 or all(task.done() for task in running))
        new = (await bench.load(1), 0)
    for task in running:
        found = task.result()
        check_whole(found)
        assert {(span.version, span.generation) for span in found.spans} <= {old, new}
    assert [(span.version, span.generation) for span in (await engine.generate(ask())).spans] == [new]


async def weights_that_are_not_those_announced_are_refused(bench: EngineBench) -> None:
    """The old ones stay in use."""
    engine = await bench.ready()
    before = engine.version
    right = bench.published(bench.weights(1))
    other = bench.published({"w": TensorBytes("float32", (1,), memoryview(bytes(4)))})
    for changes in (
        {"checksum": other.checksum},
        {"manifest": other.manifest},
        {"version": right.version + 7},
        {"path": right.path + "-absent"},
    ):
        await refuses(engine.load_weights(msgspec.structs.replace(right, **changes)))
        assert engine.version == before
    assert [span.version for span in (await engine.generate(ask())).spans] == [before[0]]
    assert await engine.load_weights(right) == right.checksum


async def cancelling_frees_the_slot(bench: EngineBench) -> None:
    """At once, of what runs and of what waits; later requests are served."""
    engine = await bench.ready()
    asked = [ask(i, max_tokens=90, min_tokens=90) for i in range(3 * SLOTS)]
    tasks = [asyncio.ensure_future(engine.generate(request)) for request in asked]
    await until(lambda: engine.stats().running > 0)
    for task in tasks:
        task.cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert any(isinstance(each, asyncio.CancelledError) for each in found)
    assert all(isinstance(each, asyncio.CancelledError | Generation) for each in found)
    await until(lambda: is_idle(engine))
    check_whole(await engine.generate(ask()))


async def closing_ends_what_runs(bench: EngineBench) -> None:
    """RolloutError ends them, and all that is asked for afterwards; closing twice changes nothing."""
    engine = await bench.ready()
    asked = [ask(i, max_tokens=90, min_tokens=90) for i in range(SLOTS + 2)]
    tasks = [asyncio.ensure_future(engine.generate(request)) for request in asked]
    await asyncio.sleep(0)
    await bench.close()
    await engine.close()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(each, RolloutError) for each in found), found
    await refuses(engine.generate(ask()))


async def a_response_is_as_long_as_asked_for(bench: EngineBench) -> None:
    """A response is not shorter than `min_tokens`, and with its prompt never longer than the model's length."""
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
    """Requests that can never run."""
    return {
        "empty": ask(1, prompt=()),
        "too long": ask(2, prompt=(30,) * max_model_len),
        "unknown token": ask(3, prompt=(1, 100_000)),
        "no tokens": ask(4, max_tokens=0, min_tokens=0),
        "no mass": ask(5, top_p=0.0),
        "unknown bias": ask(6, logit_bias=[[100_000, 1.0]]),
    }


async def a_request_that_can_never_run_is_refused(bench: EngineBench) -> None:
    """It is refused by itself, for those beside it may be of other tasks."""
    engine = await bench.ready()
    alone = [await engine.generate(ask(seed=seed)) for seed in (1, 2)]
    never = impossible(bench.max_model_len).values()
    for request in never:
        await refuses(engine.generate(request))
    asked = [ask(7, seed=1), *never, ask(8, seed=2)]
    found = await _together(engine, asked)
    first, *refused, last = (found[number] for number in range(len(asked)))
    assert all(isinstance(each, RolloutError) for each in refused), refused
    assert [each.tokens for each in (first, last) if isinstance(each, Generation)] == [each.tokens for each in alone]


async def _together(engine: RolloutEngine, asked: list[GenerationRequest]) -> dict[int, Generation | BaseException]:
    """Requests made together, in the engine's own way if it has one."""
    found: dict[int, Generation | BaseException] = {}
    if isinstance(engine, GroupEngine):
        async with engine.generate_each(asked) as answers:
            while some := await answers.some():
                found |= dict(some)
        return found
    each = await asyncio.gather(*(engine.generate(request) for request in asked), return_exceptions=True)
    return dict(enumerate(each))


async def a_stop_text_ends_a_response_and_stays_in_it(bench: EngineBench) -> None:
    """The text ends no response before `min_tokens`."""
    engine = await bench.ready()
    drawn = [await engine.generate(ask(seed=seed, max_tokens=30, min_tokens=0)) for seed in range(8)]
    whole = next(found.tokens for found in drawn if found.finish == "length")
    at = next(i for i in range(3, 30) if whole[i] >= 11 and whole[i] not in whole[:i])
    seed = [found.tokens for found in drawn].index(whole)
    text = bench.tokenizer.decode(list(whole[at - 1 : at + 1]))
    cut = await engine.generate(ask(seed=seed, max_tokens=30, min_tokens=0, stop=["never here", text]))
    assert cut.tokens == whole[: at + 1]
    assert cut.finish == "stop"
    late = await engine.generate(ask(seed=seed, max_tokens=30, min_tokens=at + 2, stop=[text]))
    assert len(late.tokens) >= at + 2


async def an_end_of_sequence_may_be_gone_beyond(bench: EngineBench) -> None:
    """It ends a response otherwise, and stays in it."""
    engine = await bench.ready()
    end = bench.tokenizer.eos_token_id
    ending: dict[str, Any] = {"logit_bias": [[end, 100.0]], "min_tokens": 2}
    stopped = await engine.generate(ask(**ending))
    assert (len(stopped.tokens), stopped.tokens[-1], stopped.finish) == (3, end, "stop")
    going_on = await engine.generate(ask(**ending, ignore_eos=True))
    assert (going_on.tokens[2:], going_on.finish) == ((end,) * 10, "length")


async def penalties_see_their_own_text_alone(bench: EngineBench) -> None:
    """Requests that begin alike and part, some penalised: each answer is what it is alone."""
    engine = await bench.ready()
    penalised: dict[str, Any] = {"temperature": 0.7, "presence_penalty": 0.5, "min_p": 0.02}
    asked = [ask(i, seed=i % 3, repetition_penalty=1.0 + i % 2, **penalised) for i in range(6)]
    alone = [(await engine.generate(request)).tokens for request in asked]
    together = await asyncio.gather(*(engine.generate(request) for request in asked))
    assert [each.tokens for each in together] == alone
    assert len(set(alone)) == 6


async def new_weights_are_those_that_draw(bench: EngineBench) -> None:
    """After a change and back, the tokens and log-probabilities are those of before."""
    engine = await bench.ready()
    first = await engine.generate(ask(temperature=0.0))
    await bench.load(1)
    second = await engine.generate(ask(temperature=0.0))
    assert (second.tokens, second.logprobs) != (first.tokens, first.logprobs)
    await bench.load(0)
    again = await engine.generate(ask(temperature=0.0))
    assert again.tokens == first.tokens
    assert all(abs(one - two) < 1e-4 for one, two in zip(again.logprobs, first.logprobs, strict=True))


async def weights_of_another_model_or_broken_ones_are_refused(bench: EngineBench) -> None:
    """Before anything changes: the old weights draw the same tokens as before."""
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
        {each: tensor for each, tensor in whole.items() if each != name},
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
"""What every engine promises. The last closes the engine: what comes after it opens another."""

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
"""What an engine promises that runs the model of its folder."""
