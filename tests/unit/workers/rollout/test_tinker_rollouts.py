"""The Tinker rollout engine against a rehearsal of the service."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from synthetic.models.tinker_rehearsal import Rehearsal, RehearsalService
from synthetic.until import until

from rftd.ops.errors import RolloutError
from rftd.streams.spec.spec import ModelSpec
from rftd.workers.engines.tinker.rollout.engine import TinkerRolloutEngine
from rftd.workers.generation.engine import GenerationRequest, Sampling
from rftd.workers.weights.channel import WeightsRef
from rftd.workers.weights.service import SERVICE

pytestmark = pytest.mark.anyio
MODEL = ModelSpec(path="/nowhere", max_model_len=32, max_prompt_tokens=16, max_response_tokens=16)


def make_ref(path: str, version: int = 1, method: str = SERVICE) -> WeightsRef:
    return WeightsRef(version=version, generation=0, path=path, manifest="m", checksum=f"name:{version}", method=method)


def make_request(**sampling: Any) -> GenerationRequest:
    settings = {"max_tokens": 4, "seed": 2**63 + 5} | sampling
    return GenerationRequest(id=UUID(int=1), prompt=(5, 6), sampling=Sampling(**settings))


def with_weights(count: int = 1) -> tuple[Rehearsal, RehearsalService, list[str]]:
    service = Rehearsal()
    run = service.new_run("org/tiny")
    return service, RehearsalService(service), [service.save(f"v{n}", run, "sampler_weights") for n in range(count)]


async def test_a_response_is_of_the_weights_that_it_began_with() -> None:
    _, way, (first, second) = with_weights(2)
    engine = TinkerRolloutEngine(way, MODEL)
    with pytest.raises(RolloutError, match="has no weights"):
        await engine.generate(make_request())
    assert await engine.load_weights(make_ref(first, 1)) == "name:1"
    async with asyncio.TaskGroup() as tasks:
        drawn = tasks.create_task(engine.generate(make_request()))
        await asyncio.sleep(0)
        await engine.load_weights(make_ref(second, 2))
    found = drawn.result()
    assert [(span.version, span.start, span.end) for span in found.spans] == [(1, 0, len(found.tokens))]
    assert len(found.logprobs) == len(found.tokens) <= 4
    assert engine.version == (2, 0)
    assert engine.stats().requests_total == 1
    await engine.close()
    with pytest.raises(RolloutError, match="was closed"):
        await engine.generate(make_request())


async def test_while_the_service_is_away_the_engine_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rftd.workers.engines.tinker.watch.CHECK_EVERY_S", 0.01)
    service, way, (path,) = with_weights()
    engine = TinkerRolloutEngine(way, MODEL, "the Tinker service at x")
    await engine.load_weights(make_ref(path))
    assert engine.stats().waits_for == ""
    service.away = True
    async with asyncio.TaskGroup() as tasks:
        drawn = [tasks.create_task(engine.generate(make_request(seed=seed))) for seed in range(3)]
        await until(lambda: engine.stats().waits_for == "the Tinker service at x")
        assert engine.stats().running == 3
        service.away = False
    assert all(each.result().tokens for each in drawn)
    assert engine.stats().waits_for == ""
    await engine.close()


async def test_weights_of_another_channel_or_that_are_gone() -> None:
    service, way, (path,) = with_weights()
    engine = TinkerRolloutEngine(way, MODEL)
    with pytest.raises(RolloutError, match="came through the channel 'checkpoint'"):
        await engine.load_weights(make_ref("/folder", method="checkpoint"))
    await engine.load_weights(make_ref(path))
    service.saved.clear()
    with pytest.raises(RolloutError, match="has forgotten"):
        await engine.load_weights(make_ref(path, 2))
    assert engine.version == (1, 0)
    await engine.close()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda found: found | {"tokens": "12"}, "sequences[0].tokens"),
        (lambda found: found | {"tokens": []}, "sequences[0].tokens"),
        (lambda found: found | {"tokens": [1] * 5}, "sequences[0].tokens"),
        (lambda found: found | {"logprobs": None}, "sequences[0].logprobs"),
        (lambda found: found | {"logprobs": [*found["logprobs"], -1.0]}, "sequences[0].logprobs"),
        (lambda found: found | {"logprobs": [3.0] * len(found["tokens"])}, "sequences[0].logprobs"),
        (lambda found: found | {"stop_reason": "maybe"}, "sequences[0].stop_reason"),
    ],
)
async def test_an_answer_of_another_shape_fails_its_rollout(change: Callable[[Any], Any], field: str) -> None:
    _, way, (path,) = with_weights()
    way.strike = lambda what, work: change(work()) if what == "sample" else work()
    engine = TinkerRolloutEngine(way, MODEL)
    await engine.load_weights(make_ref(path))
    with pytest.raises(RolloutError, match="unexpected shape") as error:
        await engine.generate(make_request())
    assert error.value.field == field
    await engine.close()


async def test_settings_that_the_service_does_not_have_are_refused() -> None:
    _, way, (path,) = with_weights()
    engine = TinkerRolloutEngine(way, MODEL)
    await engine.load_weights(make_ref(path))
    for name, value in {"min_tokens": 2, "logit_bias": ((1, 2.0),), "ignore_eos": True, "min_p": 0.1}.items():
        with pytest.raises(RolloutError, match=f"cannot draw with {name}"):
            await engine.generate(make_request(**{name: value}))
    await engine.close()
