"""The model facade: lengths, derived ids and seeds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import msgspec
import pytest

from rftd.ops.errors import RolloutError
from rftd.streams.events.experience import SamplingSpan, Span
from rftd.streams.spec.spec import ModelSpec, SamplingSpec
from rftd.workers.datasets.byte_tokenizer import EOS, ByteTokenizer
from rftd.workers.datasets.message import Message
from rftd.workers.generation.engine import EngineStats, Generation, GenerationRequest
from rftd.workers.generation.model import Model
from rftd.workers.weights.channel import WeightsRef

ROLLOUT = UUID(int=7)
SPEC = ModelSpec(path="m", max_model_len=20, max_prompt_tokens=12, max_response_tokens=10, min_response_tokens=2)


@dataclass
class RecordingEngine:
    """Answers `ok` to everything and keeps the requests."""

    requests: list[GenerationRequest] = field(default_factory=list)
    logprobs: tuple[float, ...] = (-1.0, -2.0, -0.5)

    @property
    def version(self) -> tuple[int, int]:
        return (3, 1)

    async def generate(self, request: GenerationRequest) -> Generation:
        self.requests.append(request)
        return Generation(tokens=(*b"ok", EOS), logprobs=self.logprobs, spans=(Span(3, 1, 0, 3),), finish="stop")

    async def load_weights(self, weights: WeightsRef) -> str:
        return weights.checksum

    def stats(self) -> EngineStats:
        return EngineStats(tokens_total=0, requests_total=0, running=0, waiting=0)

    async def close(self) -> None:
        return None


def model(
    engine: RecordingEngine, *, spec: ModelSpec = SPEC, rollout: UUID = ROLLOUT, seed: UUID | None = None
) -> Model:
    sampling = SamplingSpec(temperature=0.5, top_p=0.9, top_k=5, max_tokens=8, stop=("x",))
    return Model(engine, ByteTokenizer(), spec=spec, sampling=sampling, rollout=rollout, seed=seed)


@pytest.mark.anyio
async def test_a_response_carries_what_training_needs() -> None:
    response = await model(RecordingEngine()).complete("1+1=")
    assert (response.text, response.finish, response.truncated) == ("ok", "stop", False)
    assert response.prompt == tuple(b"1+1=")
    assert response.tokens == (*b"ok", EOS)
    assert response.logprobs == (-1.0, -2.0, -0.5)
    assert response.spans == (Span(3, 1, 0, 3),)


@pytest.mark.anyio
async def test_chat_uses_the_template_and_the_reply_prefix() -> None:
    engine = RecordingEngine()
    spec = msgspec.structs.replace(SPEC, max_prompt_tokens=100, max_model_len=200)
    await model(engine, spec=spec).chat([Message("user", "hi")], reply_prefix="<t>")
    assert bytes(engine.requests[0].prompt) == b"user: hi\nassistant: <t>"


@pytest.mark.anyio
async def test_sampling_is_the_tasksets_within_the_lengths() -> None:
    engine = RecordingEngine()
    asked = model(engine)
    await asked.complete("1234")
    await asked.complete("x" * 12)
    await asked.complete("1234", sampling=msgspec.structs.replace(asked.sampling, temperature=0.0, max_tokens=1))
    sampling = [request.sampling for request in engine.requests]
    assert [(s.temperature, s.top_p, s.top_k, s.stop) for s in sampling[:2]] == [(0.5, 0.9, 5, ("x",))] * 2
    assert [(s.max_tokens, s.min_tokens) for s in sampling] == [(8, 2), (8, 2), (1, 1)]
    assert sampling[2].temperature == 0.0


@pytest.mark.anyio
async def test_the_last_token_of_the_model_belongs_to_the_response() -> None:
    engine = RecordingEngine()
    spec = msgspec.structs.replace(SPEC, max_prompt_tokens=20)
    asked = model(engine, spec=spec)
    assert not (await asked.complete("x" * 19)).truncated
    assert engine.requests[0].sampling.max_tokens == 1
    assert (await asked.complete("x" * 20)).truncated


@pytest.mark.anyio
async def test_ids_and_seeds_follow_from_the_rollout() -> None:
    async def requests(rollout: int, seed: UUID | None = None) -> list[tuple[UUID, int]]:
        engine = RecordingEngine()
        asked = model(engine, rollout=UUID(int=rollout), seed=seed)
        await asked.complete("a")
        await asked.complete("a")
        return [(request.id, request.sampling.seed) for request in engine.requests]

    first = await requests(1)
    assert first == await requests(1)
    assert len({*first, *await requests(2)}) == 4
    assert first[0][1] != first[1][1]
    assert all(0 <= seed < 2**63 for _, seed in first)
    seeded, again = await requests(1, UUID(int=9)), await requests(2, UUID(int=9))
    assert [seed for _, seed in seeded] == [seed for _, seed in again] != [seed for _, seed in first]
    assert [identity for identity, _ in seeded] == [identity for identity, _ in first]


@pytest.mark.anyio
async def test_a_prompt_that_does_not_fit_is_cut_and_not_generated_from() -> None:
    engine = RecordingEngine()
    response = await model(engine).complete("abcdefghijklmnop")
    assert engine.requests == []
    assert response.truncated
    assert response.finish == "prompt_truncated"
    assert bytes(response.prompt) == b"abcdefghijkl"
    assert (response.tokens, response.logprobs, response.spans) == ((EOS,), (0.0,), (Span(3, 1, 0, 1),))


@pytest.mark.anyio
async def test_prompts_that_can_never_run_are_refused() -> None:
    spec = msgspec.structs.replace(SPEC, enable_prompt_truncation=False)
    with pytest.raises(RolloutError, match=r"(?s)16 tokens, the limit is 12.*max_prompt_tokens"):
        await model(RecordingEngine(), spec=spec).complete("abcdefghijklmnop")
    with pytest.raises(RolloutError, match="the prompt is empty"):
        await model(RecordingEngine()).complete("")


@pytest.mark.anyio
async def test_an_engine_that_answers_nonsense_is_named() -> None:
    with pytest.raises(RolloutError, match="3 tokens and 1 log-probabilities"):
        await model(RecordingEngine(logprobs=(0.0,))).complete("a")


@pytest.mark.anyio
async def test_a_response_says_how_it_was_drawn() -> None:
    engine = RecordingEngine()
    asked = model(engine)
    other = msgspec.structs.replace(
        asked.sampling,
        min_p=0.1,
        repetition_penalty=1.5,
        presence_penalty=-1.0,
        logit_bias=((7, 2.0),),
        ignore_eos=True,
    )
    usual = await asked.complete("a")
    changed = await asked.complete("a", sampling=other)
    assert usual.sampling == (SamplingSpan(0, 3, 0.5, 0.9, 5),)
    others = (("min_p", 0.1), ("repetition_penalty", 1.5), ("presence_penalty", -1.0), ("logit_bias/7", 2.0))
    assert changed.sampling == (SamplingSpan(0, 3, 0.5, 0.9, 5, others),)
    assert engine.requests[1].sampling.ignore_eos


@pytest.mark.anyio
@pytest.mark.parametrize(
    "change",
    [
        {"temperature": float("nan")},
        {"top_p": 1.5},
        {"top_k": -2},
        {"min_p": -0.1},
        {"repetition_penalty": 0.0},
        {"presence_penalty": float("inf")},
        {"logit_bias": ((7, 101.0),)},
    ],
    ids=str,
)
async def test_what_cannot_be_drawn_is_named(change: dict[str, Any]) -> None:
    engine = RecordingEngine()
    asked = model(engine)
    with pytest.raises(RolloutError) as error:
        await asked.complete("a", sampling=msgspec.structs.replace(asked.sampling, **change))
    (name,) = change
    assert error.value.field is not None
    assert error.value.field.startswith(name)
    assert error.value.fix
    assert not engine.requests
