"""The torch engine's front: what waiters see when the decode thread fails, and when they leave."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import msgspec
import pytest
import torch
from synthetic.models.families import FAMILIES
from synthetic.models.tiny_models import make_model
from transformers import AutoModelForCausalLM

from rftd.ops.errors import DataError, RolloutError
from rftd.workers.devices.device_turn import Resting
from rftd.workers.engines.torch.rollout import network
from rftd.workers.engines.torch.rollout.batch import Batch
from rftd.workers.engines.torch.rollout.engine import TorchRolloutEngine
from rftd.workers.generation.engine import Generation, GenerationRequest, Sampling
from rftd.workers.weights import checkpoint, opened_tensors
from rftd.workers.weights.channel import WeightsRef
from rftd.workers.weights.torch_bytes import bytes_of, tensors_of

ModelOf = Callable[[str], Path]


async def opened(folder: Path, **settings: object) -> TorchRolloutEngine:
    arguments = {"slots": 2, "max_model_len": 64, "threads": 1, **settings}
    return await TorchRolloutEngine.open(str(folder), **arguments)  # type: ignore[arg-type]


def weights_of(folder: Path, to: Path, *, sharper: float = 1.0) -> WeightsRef:
    tensors = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    tensors = {name: tensor * sharper for name, tensor in tensors.items()}
    written = checkpoint.export(bytes_of(tensors), to, version=0, generation=0)
    return WeightsRef(version=0, generation=0, path=written.path, manifest=written.manifest, checksum=written.checksum)


def request(number: int, max_tokens: int = 40) -> GenerationRequest:
    sampling = Sampling(max_tokens=max_tokens, min_tokens=max_tokens, seed=number)
    return GenerationRequest(id=UUID(int=number), prompt=(20, 21, 22), sampling=sampling)


@pytest.mark.anyio
async def test_a_failing_model_reaches_every_waiter(model_of: ModelOf, tmp_path: Path) -> None:
    folder = model_of("gpt2")
    engine = await opened(folder)
    await engine.load_weights(weights_of(folder, tmp_path / "v0"))

    def burst(*_: object) -> None:
        raise MemoryError("no room for a tensor")

    hook = engine._network.model.register_forward_pre_hook(burst)
    waiting = await asyncio.gather(*(engine.generate(request(i)) for i in range(5)), return_exceptions=True)
    hook.remove()
    assert all(isinstance(error, RolloutError) and "no room for a tensor" in str(error) for error in waiting)
    for late in (engine.generate(request(9)), engine.load_weights(weights_of(folder, tmp_path / "v0"))):
        with pytest.raises(RolloutError, match="no room for a tensor"):
            await late
    await engine.close()


class Gated(torch.Tensor):
    """Whoever looks at its numbers waits until the gate is open; copying them does not."""

    gate = threading.Event()

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (torch.isfinite, torch.aminmax):
            assert cls.gate.wait(60)
        return super().__torch_function__(function, types, args, kwargs or {})


@pytest.mark.anyio
async def test_decoding_goes_on_while_new_weights_are_verified(
    model_of: ModelOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens are drawn from the old ones until the last number of the new ones was looked at."""
    folder = model_of("llama")
    engine = await opened(folder)
    weights = await asyncio.to_thread(weights_of, folder, tmp_path / "v0")
    await engine.load_weights(weights)
    Gated.gate.clear()
    monkeypatch.setattr(
        opened_tensors,
        "tensors_of",
        lambda found: {name: tensor.as_subclass(Gated) for name, tensor in tensors_of(found).items()},
    )
    try:
        loading = asyncio.ensure_future(engine.load_weights(msgspec.structs.replace(weights)))
        for number in range(3):
            async with asyncio.timeout(30):
                found = await engine.generate(request(number))
            assert [(span.version, span.start, span.end) for span in found.spans] == [(0, 0, 40)]
            assert not loading.done()
    finally:
        Gated.gate.set()
    assert await loading == weights.checksum
    assert len((await engine.generate(request(9))).tokens) == 40
    await engine.close()


@pytest.mark.anyio
async def test_requests_wait_for_the_first_weights(model_of: ModelOf, tmp_path: Path) -> None:
    folder = model_of("llama")
    engine = await opened(folder)
    early = asyncio.ensure_future(engine.generate(request(1)))
    reference = await asyncio.to_thread(weights_of, folder, tmp_path / "v0")
    assert engine.stats().waiting == 1
    assert not early.done()
    await engine.load_weights(reference)
    assert len((await early).tokens) == 40
    assert engine.stats().requests_total == 1
    await engine.close()


@pytest.mark.anyio
async def test_leaving_before_being_sent_and_while_waiting(model_of: ModelOf, tmp_path: Path) -> None:
    folder = model_of("qwen3")
    engine = await opened(folder)
    await engine.load_weights(weights_of(folder, tmp_path / "v0"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await engine.generate(request(0))
    many = [asyncio.ensure_future(engine.generate(request(i))) for i in range(9)]
    await asyncio.sleep(0)
    for task in many[::2]:
        task.cancel()
    results = await asyncio.gather(*many, return_exceptions=True)
    assert [isinstance(result, asyncio.CancelledError) for result in results] == [i % 2 == 0 for i in range(9)]
    assert engine.stats().waiting == 0
    await engine.close()


@pytest.mark.anyio
async def test_a_missing_model_is_the_caller_s_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no model folder"):
        await opened(tmp_path / "absent")


@pytest.mark.anyio
async def test_requests_made_together_end_as_they_would_alone(model_of: ModelOf, tmp_path: Path) -> None:
    folder = model_of("llama")
    engine = await opened(folder)
    await engine.load_weights(weights_of(folder, tmp_path / "v0"))
    requests = [request(number, 3 + number) for number in range(5)]
    found: dict[int, object] = {}
    async with asyncio.timeout(60), engine.generate_each(requests) as answers:
        while some := await answers.some():
            found |= some
    # The last digits of a log-probability depend on who is in the batch.
    alone = [await engine.generate(each) for each in requests]
    assert [cast(Generation, found[number]).tokens for number in range(5)] == [each.tokens for each in alone]
    async with engine.generate_each(requests):
        pass
    assert engine.stats().waiting == 0, "who leaves waits for nothing"
    async with engine.generate_each(requests) as answers:
        await engine.close()
        some = await answers.some()
    assert len(some) == 5
    assert all(isinstance(error, RolloutError) for _, error in some)


@pytest.mark.anyio
@pytest.mark.parametrize("architecture", ["llama", "gpt_neox"])
async def test_an_engine_that_rests_between_requests_answers_as_one_that_never_does(
    model_of: ModelOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str
) -> None:
    folder = model_of(architecture)
    read_model = network.read_model

    def copied(*args: Any, **options: Any) -> Any:
        """A model mapped from its file, whose memory cannot be given up, has memory of its own on a device."""
        model = read_model(*args, **options)
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.data = tensor.data.clone()
        return model

    monkeypatch.setattr(network, "read_model", copied)
    first = weights_of(folder, tmp_path / "v0")
    later = weights_of(model_of("llama"), tmp_path / "v1", sharper=1.5) if architecture == "llama" else first
    plain = await opened(folder)
    engine = await opened(folder)
    assert isinstance(engine, Resting)
    engine._loop.rest.possible = True  # a CPU's memory is the host's: here it is parked there all the same
    for each in (plain, engine):
        await each.load_weights(first)
    parameters = list(engine._network.model.parameters())
    for number, weights in enumerate((None, later, None)):
        answers = [await each.generate(request(number)) for each in (plain, engine)]
        assert answers[0] == answers[1]
        await engine.rest()
        assert all(parameter.untyped_storage().nbytes() == 0 for parameter in parameters)
        assert isinstance(engine._loop._batch, Batch)
        assert not engine._loop._batch._cache._keys, "keys and values are gone, too"
        if weights is not None:
            for each in (plain, engine):
                await each.load_weights(weights)
            assert parameters[0].untyped_storage().nbytes() == 0, "weights that arrive at rest go to rest"
        await engine.wake()
    for each in (plain, engine):
        await each.close()
    with pytest.raises(RolloutError, match="closed"):
        await engine.rest()


@pytest.mark.anyio
@pytest.mark.parametrize("family", ["lfm2", "openai-gpt"])
async def test_a_model_that_is_computed_alone_answers_and_takes_new_weights(tmp_path: Path, family: str) -> None:
    folder = make_model(tmp_path / "model", FAMILIES[family], seed=4)
    engine = await opened(folder)
    await engine.load_weights(weights_of(folder, tmp_path / "v0"))
    together = await asyncio.gather(*(engine.generate(request(number, 9)) for number in range(3)))
    assert together == [await engine.generate(request(number, 9)) for number in range(3)]
    await engine.load_weights(weights_of(folder, tmp_path / "v1", sharper=1.5))
    other = await engine.generate(request(0, 9))
    assert other.logprobs != together[0].logprobs
    assert len(other.tokens) == 9
    await engine.close()


@pytest.mark.anyio
async def test_a_bias_of_a_token_that_the_model_does_not_have_is_refused_at_opening(model_of: ModelOf) -> None:
    folder = model_of("gpt2")
    last = AutoModelForCausalLM.from_pretrained(folder).config.vocab_size - 1
    await (await opened(folder, biased=[last])).close()
    with pytest.raises(RolloutError, match=f"logit_bias names token {last + 1}") as refused:
        await opened(folder, biased=[last, last + 1])
    assert refused.value.fix == f"name token ids of this model, 0 to {last}"
