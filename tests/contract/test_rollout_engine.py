"""What every rollout engine promises. An engine joins by one line in ENGINES."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from rftd.daemon.demo.model import make_tiny_model, make_tokenizer
from rftd.ops.errors import RolloutError
from rftd.workers.rollout.engine import Generation, GenerationRequest, GroupEngine, RolloutEngine, Sampling
from rftd.workers.rollout.engines.torch.engine import TorchRolloutEngine
from rftd.workers.weights import checkpoint
from rftd.workers.weights.channel import WeightsRef
from rftd.workers.weights.torch_bytes import bytes_of

MAX_MODEL_LEN = 96
SLOTS = 4


async def open_torch(model: Path) -> RolloutEngine:
    return await TorchRolloutEngine.open(str(model), slots=SLOTS, max_model_len=MAX_MODEL_LEN, threads=1)


ENGINES: dict[str, Callable[[Path], Awaitable[RolloutEngine]]] = {"torch": open_torch}


@dataclass(frozen=True)
class Bench:
    """An engine with its first weights, and a second version to go to."""

    engine: RolloutEngine
    first: WeightsRef
    second: WeightsRef


def exported(folder: Path, tensors: dict[str, torch.Tensor], version: int) -> WeightsRef:
    written = checkpoint.export(bytes_of(tensors), folder, version=version, generation=0)
    return WeightsRef(
        version=version, generation=0, path=written.path, manifest=written.manifest, checksum=written.checksum
    )


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, WeightsRef, WeightsRef]:
    folder = tmp_path_factory.mktemp("models")
    model = make_tiny_model(folder / "one", seed=1)
    other = make_tiny_model(folder / "two", seed=2)
    refs = [exported(folder / f"v{i}", load_file(m / "model.safetensors"), i) for i, m in enumerate((model, other))]
    return model, refs[0], refs[1]


@pytest.fixture(params=sorted(ENGINES))
async def bench(request: pytest.FixtureRequest, versions: tuple[Path, WeightsRef, WeightsRef]) -> AsyncIterator[Bench]:
    model, first, second = versions
    async with AsyncExitStack() as stack:
        engine = await ENGINES[request.param](model)
        stack.push_async_callback(engine.close)
        assert engine.version == (-1, -1)
        assert await engine.load_weights(first) == first.checksum
        assert engine.version == (0, 0)
        yield Bench(engine, first, second)


def ask(number: int = 0, *, prompt: tuple[int, ...] = (20, 30, 40), **sampling: object) -> GenerationRequest:
    settings = msgspec.convert({"max_tokens": 12, "min_tokens": 12, **sampling}, Sampling)
    return GenerationRequest(id=UUID(int=number), prompt=prompt, sampling=settings)


@pytest.mark.anyio
async def test_a_response_is_whole(bench: Bench) -> None:
    found = await bench.engine.generate(ask(seed=5))
    assert len(found.tokens) == len(found.logprobs) == 12
    assert found.finish == "length"
    assert [(s.version, s.generation, s.start, s.end) for s in found.spans] == [(0, 0, 0, 12)]
    assert all(logprob <= 0 for logprob in found.logprobs)


@pytest.mark.anyio
async def test_a_seed_gives_the_same_tokens_beside_any_neighbours(bench: Bench) -> None:
    engine = bench.engine
    alone = await engine.generate(ask(seed=7))
    crowd = [ask(i, prompt=(50,) * (1 + i), seed=i, max_tokens=3 + i, min_tokens=0) for i in range(9)]
    async with asyncio.TaskGroup() as group:
        neighbours = [group.create_task(engine.generate(request)) for request in crowd[:5]]
        again = group.create_task(engine.generate(ask(seed=7)))
        neighbours += [group.create_task(engine.generate(request)) for request in crowd[5:]]
        other = group.create_task(engine.generate(ask(seed=8)))
    assert again.result().tokens == alone.tokens != other.result().tokens
    assert again.result().logprobs == pytest.approx(alone.logprobs, abs=1e-4)
    assert all(task.result().tokens for task in neighbours)


@pytest.mark.anyio
async def test_limits_of_length(bench: Bench) -> None:
    engine = bench.engine
    full = await engine.generate(ask(prompt=(30,) * 90, max_tokens=50, min_tokens=50))
    assert len(full.tokens) == MAX_MODEL_LEN - 90
    assert full.finish == "length"
    assert len((await engine.generate(ask(max_tokens=1, min_tokens=0))).tokens) == 1


IMPOSSIBLE = {
    "empty": ask(prompt=()),
    "too_long": ask(prompt=(30,) * MAX_MODEL_LEN),
    "unknown_token": ask(prompt=(1, 100_000)),
    "no_tokens": ask(max_tokens=0),
    "no_mass": ask(top_p=0.0),
    "unknown_bias": ask(logit_bias=[[100_000, 1.0]]),
}


@pytest.mark.anyio
@pytest.mark.parametrize("request_", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
async def test_a_request_that_can_never_run_is_refused(bench: Bench, request_: GenerationRequest) -> None:
    with pytest.raises(RolloutError):
        await bench.engine.generate(request_)
    assert len((await bench.engine.generate(ask())).tokens) == 12


@pytest.mark.anyio
async def test_of_requests_made_together_those_that_can_never_run_are_refused_alone(bench: Bench) -> None:
    """They may be of different tasks, as the rows of an evaluation are."""
    engine = bench.engine
    if not isinstance(engine, GroupEngine):
        pytest.skip("the engine takes one request at a time")
    found: dict[int, Generation | RolloutError] = {}
    async with engine.generate_each([ask(1, seed=1), *IMPOSSIBLE.values(), ask(2, seed=2)]) as answers:
        while some := await answers.some():
            found |= dict(some)
    last = len(IMPOSSIBLE) + 1
    assert sorted(found) == list(range(last + 1))
    assert all(isinstance(found[number], RolloutError) for number in range(1, last))
    for number, seed in ((0, 1), (last, 2)):
        answer = found[number]
        assert isinstance(answer, Generation)
        assert answer.tokens == (await engine.generate(ask(seed=seed))).tokens


@pytest.mark.anyio
async def test_a_stop_text_ends_a_response_and_stays_in_it(bench: Bench) -> None:
    engine = bench.engine
    drawn = [await engine.generate(ask(seed=seed, max_tokens=30, min_tokens=0)) for seed in range(8)]
    whole = next(found.tokens for found in drawn if found.finish == "length")
    at = next(i for i in range(3, 30) if whole[i] >= 11 and whole[i] not in whole[:i])
    seed = [found.tokens for found in drawn].index(whole)
    text = make_tokenizer().decode(whole[at - 1 : at + 1])
    cut = await engine.generate(ask(seed=seed, max_tokens=30, min_tokens=0, stop=["never here", text]))
    assert cut.tokens == whole[: at + 1]
    assert cut.finish == "stop"
    late = await engine.generate(ask(seed=seed, max_tokens=30, min_tokens=at + 2, stop=[text]))
    assert len(late.tokens) >= at + 2


async def until(condition: Callable[[], bool]) -> None:
    """Gives way until the engine's counters say so."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 (an engine has counters, no events)
            await asyncio.sleep(0)


@pytest.mark.anyio
async def test_new_weights_in_flight(bench: Bench) -> None:
    engine = bench.engine
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(engine.generate(ask(i, seed=i, max_tokens=90, min_tokens=90))) for i in range(3)]
        await until(lambda: engine.stats().tokens_total >= 30)
        assert await engine.load_weights(bench.second) == bench.second.checksum
    assert engine.version == (1, 0)
    for task in running:
        spans = task.result().spans
        assert [(s.version, s.generation) for s in spans] in ([(0, 0), (1, 0)], [(0, 0)])
        assert spans[0].start == 0
        assert spans[-1].end == len(task.result().tokens)
        assert all(one.end == two.start for one, two in pairwise(spans))
    assert [s.version for s in (await engine.generate(ask())).spans] == [1]


@pytest.mark.anyio
async def test_weights_that_are_not_those_announced_are_refused(bench: Bench, tmp_path: Path) -> None:
    engine, first, second = bench.engine, bench.first, bench.second
    before = await engine.generate(ask(temperature=0.0))
    replaced = msgspec.structs.replace
    foreign = exported(tmp_path / "foreign", {"w": torch.ones(3)}, 5)
    broken = load_file(Path(second.path) / "model.safetensors")
    broken["model.norm.weight"] = broken["model.norm.weight"] * float("nan")
    for wrong in (
        replaced(second, checksum=first.checksum),
        replaced(second, manifest=first.manifest),
        replaced(second, version=7),
        replaced(second, path=str(tmp_path / "absent")),
        foreign,
        exported(tmp_path / "broken", broken, 6),
    ):
        with pytest.raises(RolloutError):
            await engine.load_weights(wrong)
        assert engine.version == (0, 0)
    assert await engine.generate(ask(temperature=0.0)) == before


@pytest.mark.anyio
async def test_cancelling_frees_the_slot(bench: Bench) -> None:
    engine = bench.engine
    tasks = [asyncio.ensure_future(engine.generate(ask(i, max_tokens=90, min_tokens=90))) for i in range(3 * SLOTS)]
    await until(lambda: engine.stats().running == SLOTS)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert all(task.cancelled() for task in tasks)
    await until(lambda: not engine.stats().running and not engine.stats().waiting)
    assert len((await engine.generate(ask())).tokens) == 12


@pytest.mark.anyio
async def test_closing_ends_what_runs(bench: Bench) -> None:
    engine = bench.engine
    tasks = [asyncio.ensure_future(engine.generate(ask(i, max_tokens=90, min_tokens=90))) for i in range(SLOTS + 2)]
    await asyncio.sleep(0)
    await engine.close()
    await engine.close()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, RolloutError) for result in results)
    with pytest.raises(RolloutError):
        await engine.generate(ask())


@pytest.mark.anyio
async def test_an_end_of_sequence_may_be_gone_beyond(bench: Bench) -> None:
    end = make_tokenizer().eos_token_id
    ending = {"logit_bias": [[end, 100.0]], "min_tokens": 2}
    stopped = await bench.engine.generate(ask(**ending))
    assert (len(stopped.tokens), stopped.tokens[-1], stopped.finish) == (3, end, "stop")
    going_on = await bench.engine.generate(ask(**ending, ignore_eos=True))
    assert (going_on.tokens[2:], going_on.finish) == ((end,) * 10, "length")


@pytest.mark.anyio
async def test_penalties_see_their_own_text_alone(bench: Bench) -> None:
    """Requests that begin alike and part, some penalised: each answer is what it is alone."""
    asked = [
        ask(
            number,
            seed=number % 3,
            temperature=0.7,
            repetition_penalty=1.0 + number % 2,
            presence_penalty=0.5,
            min_p=0.02,
        )
        for number in range(6)
    ]
    alone = [await bench.engine.generate(request) for request in asked]
    together = await asyncio.gather(*(bench.engine.generate(request) for request in asked))
    assert [each.tokens for each in together] == [each.tokens for each in alone]
    assert len({each.tokens for each in alone}) == 6
