"""vLLM against transformers and the torch engine: log-probabilities, greedy text, weights that change in flight."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx
import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from synthetic.models.policy_bench import APART, CLOSE, ON_GPU, SLOTS, PolicyBench, append_figures, opened_bench
from synthetic.models.scripted_engine import asking, message_of, running_endpoint, user
from synthetic.models.vllm_engines import (
    KINDS,
    MAX_MODEL_LEN,
    ask,
    exchanged_by,
    prompts,
    sockets_in,
    stays,
    workers_of,
)
from synthetic.until import PATIENCE_S
from transformers import AutoModelForCausalLM, AutoTokenizer

from rftd.ops.clock import SystemClock
from rftd.ops.errors import RolloutError
from rftd.streams.events.experience import Span
from rftd.streams.spec.spec import ModelSpec, SamplingSpec
from rftd.workers.datasets.hf_tokenizer import open_tokenizer
from rftd.workers.datasets.message import Message
from rftd.workers.engines.contract.rollout.checks import MODEL_CHECKS, Check
from rftd.workers.engines.vllm.sockets import VARIABLE
from rftd.workers.generation.engine import Generation, GenerationRequest
from rftd.workers.generation.model import Model
from rftd.workers.weights.adapter import A, B
from rftd.workers.workflows.rewards.reward import RewardResult

if TYPE_CHECKING:
    from rftd.workers.engines.vllm.engine import VllmRolloutEngine

pytestmark = pytest.mark.anyio

UPDATES = 20
"""Of one worker process. Two wait for each other at every layer, which on a busy machine takes many times as long."""
ENGINES = os.environ.get("RFTD_ENGINE_MODELS", "tied, biases;untied, no biases, two workers").split(";")
"""An engine starts for each: the bench asks for all."""
ENDS = "closing_ends_what_runs"
"""The check of the contract that ends an engine; here it is struck instead. It is made in test_vllm_figures.py."""

SHARES_MEMORY = "avx512f" in Path("/proc/cpuinfo").read_text().split()
"""Where worker processes of vLLM's CPU build exchange through shared memory; on other processors they use gloo."""


@pytest.fixture(scope="module", params=[kind for kind in KINDS if kind in ENGINES])
async def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[PolicyBench]:
    async with opened_bench(tmp_path_factory.mktemp("policies"), request.param) as made:
        yield made
        if "RFTD_ENGINE_FIGURES" in os.environ:
            append_figures(Path(os.environ["RFTD_ENGINE_FIGURES"]), {"model": request.param, **made.figures})


def updates_of(bench: PolicyBench) -> int:
    """The number of updates of one test."""
    return UPDATES // workers_of(bench.kind) ** 2


async def drawn(engine: VllmRolloutEngine, requests: Sequence[GenerationRequest]) -> list[Generation]:
    return list(await asyncio.gather(*map(engine.generate, requests)))


async def until(condition: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 (an engine has counters, no events)
            await asyncio.sleep(0.001)


async def test_an_auxiliary_model_answers_from_the_weights_of_its_folder(bench: PolicyBench) -> None:
    """The first test: those after it load other weights."""
    question = Message("user", "2+3=")
    tokenizer = open_tokenizer(bench.policies.base)
    prompt = tuple(tokenizer.encode(tokenizer.chat_text([question], generation_prompt=True)))
    request = ask(1, prompt=prompt, temperature=0.0, min_tokens=0)
    expected = await bench.engine.generate(request)
    bench.check_close("an auxiliary model", request, expected)
    answer = await bench.judge.chat([question], sampling=SamplingSpec(temperature=0.0, max_tokens=24))
    assert (answer.text, answer.tokens) == (tokenizer.decode(expected.tokens), len(expected.tokens))
    async with bench.judge.served() as address, httpx.AsyncClient(base_url=address.base_url, trust_env=False) as client:
        body = {"messages": [{"role": "user", "content": "2+3="}], "temperature": 0, "max_tokens": 24}
        key = {"Authorization": f"Bearer {address.api_key}"}
        reply = await client.post("chat/completions", json=body, headers=key, timeout=60.0)
    assert reply.json()["choices"][0]["message"]["content"] == answer.text


async def test_a_rollout_is_asked_and_answered_as_transformers_asks_and_answers(bench: PolicyBench) -> None:
    """In the ids of its own template, and with its own greedy tokens; this test too is before other weights."""
    messages = [{"role": "system", "content": "Add."}, {"role": "user", "content": "2+3="}]
    inner = AutoTokenizer.from_pretrained(bench.policies.base)
    wanted = inner.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    network = AutoModelForCausalLM.from_pretrained(bench.policies.base, dtype=torch.float32)
    answered = network.generate(torch.tensor([wanted]), max_new_tokens=24, do_sample=False)
    spec = ModelSpec(
        path=str(bench.policies.base),
        max_model_len=MAX_MODEL_LEN,
        max_prompt_tokens=MAX_MODEL_LEN // 2,
        max_response_tokens=24,
    )
    model = Model(
        bench.engine,
        open_tokenizer(bench.policies.base),
        spec=spec,
        sampling=SamplingSpec(temperature=0.0, max_tokens=24),
        rollout=UUID(int=1),
    )
    response = await model.chat([Message(message["role"], message["content"]) for message in messages])
    assert list(response.prompt) == wanted
    assert list(response.tokens) == answered[0, len(wanted) :].tolist()


async def test_log_probabilities_are_the_policys_whatever_the_sampling(bench: PolicyBench) -> None:
    chance = random.Random(7)
    requests = [
        ask(
            number,
            prompt=prompt,
            temperature=(0.0, 0.5, 1.0, 1.5)[number % 4],
            top_p=chance.choice((1.0, 0.9, 0.5)),
            top_k=chance.choice((-1, 5, 20)),
            min_tokens=chance.choice((0, 3, 24)),
            processed_logprobs=bool(number % 3),
            repetition_penalty=chance.choice((1.0, 1.0, 1.3)),
            logit_bias=chance.choice(((), ((50, 3.0), (2, 4.0)))),
        )
        for number, prompt in enumerate(prompts(64))
    ]
    for request, generation in zip(requests, await drawn(bench.engine, requests), strict=True):
        bench.check_close("64 requests of mixed sampling", request, generation)


async def test_schema_bound_response_obeys_it_with_the_policys_log_probabilities(
    bench: PolicyBench,
) -> None:
    verdict = {"type": "object", "properties": {"points": {"enum": [1, 2, 3]}, "right": {"type": "boolean"}}}
    verdict |= {"required": ["points", "right"], "additionalProperties": False}
    schema = json.dumps(verdict)
    requests = [
        ask(
            number,
            prompt=prompt,
            temperature=(0.5, 1.0)[number % 2],
            json_schema=schema if number % 3 else "",
            max_tokens=150,
            min_tokens=0,
            processed_logprobs=True,
        )
        for number, prompt in enumerate(prompts(48, seed=5))
    ]
    generations = await drawn(bench.engine, requests)
    tokenizer = open_tokenizer(bench.policies.base)
    ended = 0
    for request, generation in zip(requests, generations, strict=True):
        bench.check_close("32 of 48 requests held to a schema", request, generation)
        likelier = np.array(generation.processed_logprobs) - np.array(generation.logprobs)
        if not request.sampling.json_schema:
            assert np.abs(likelier).max() <= CLOSE
            continue
        # Banned tokens leave their share to the others: a tiny model hardly ever means to write such a thing.
        assert likelier.min() >= -CLOSE
        assert likelier.max() > 1.0
        if generation.finish == "stop":
            ended += 1
            said = json.loads(tokenizer.decode(generation.tokens))
            assert set(said) == {"points", "right"}
            assert said["points"] in (1, 2, 3)
            assert type(said["right"]) is bool
    assert ended >= 16
    with pytest.raises(RolloutError) as caught:
        await bench.engine.generate(ask(json_schema='{"type": "wizard"}'))
    assert caught.value.field == "json_schema"
    request = ask(1)
    bench.check_close("after a schema was refused", request, await bench.engine.generate(request))


async def test_processed_log_probabilities_are_of_what_was_drawn_from(bench: PolicyBench) -> None:
    """The token is certain if it is the only candidate or greedy; without any filter both log-probabilities are one."""
    engine = bench.engine
    certain, plain, greedy = await drawn(
        engine,
        [
            ask(1, top_k=1, processed_logprobs=True),
            ask(2, temperature=0.7, min_tokens=0, processed_logprobs=True),
            ask(3, temperature=0.0, processed_logprobs=True),
        ],
    )
    assert certain.processed_logprobs == pytest.approx([0.0] * 24, abs=1e-6)
    assert plain.processed_logprobs == pytest.approx(plain.logprobs, abs=1e-6)
    assert greedy.processed_logprobs == (0.0,) * 24
    two = await engine.generate(ask(4, top_k=2, temperature=1.5, processed_logprobs=True, logit_bias=((2, -100.0),)))
    assert all(later >= before for later, before in zip(two.processed_logprobs, two.logprobs, strict=True))
    assert max(two.processed_logprobs) < 0


async def test_ends_are_banned_before_min_tokens_also_where_they_end_nothing(bench: PolicyBench) -> None:
    found = await bench.engine.generate(ask(1, logit_bias=((2, 100.0),), min_tokens=5, ignore_eos=True))
    assert 2 not in found.tokens[:5]
    assert found.tokens[5:] == (2,) * 19


@pytest.mark.skipif(ON_GPU, reason="TF32 decides between tokens that are equally likely")
async def test_greedy_text_is_the_torch_engines(bench: PolicyBench) -> None:
    from rftd.workers.engines.torch.rollout.engine import TorchRolloutEngine

    requests = [ask(number, prompt=prompt, temperature=0.0) for number, prompt in enumerate(prompts(64, seed=3))]
    ours = await drawn(bench.engine, requests)
    async with AsyncExitStack() as stack:
        torch_engine = await TorchRolloutEngine.open(
            str(bench.policies.base), slots=16, max_model_len=MAX_MODEL_LEN, threads=1
        )
        stack.push_async_callback(torch_engine.close)
        await torch_engine.load_weights(bench.policies.publish(0))
        theirs = await asyncio.gather(*map(torch_engine.generate, requests))
    assert [each.tokens for each in ours] == [each.tokens for each in theirs]


@pytest.mark.parametrize("method", ["memory", "checkpoint", "adapter"])
async def test_updates_while_idle_are_the_new_weights(bench: PolicyBench, method: str) -> None:
    engine, policies = bench.engine, bench.policies
    begin = engine.version[0] + 1
    for version in range(begin, begin + updates_of(bench)):
        await bench.load(policies.publish(version, method), f"{method}, idle")
        assert engine.version == (version, 0)
        requests = [ask(number, prompt=prompt) for number, prompt in enumerate(prompts(4, seed=version))]
        for request, generation in zip(requests, await drawn(engine, requests), strict=True):
            assert [span.version for span in generation.spans] == [version]
            bench.check_close(f"{updates_of(bench)} updates, {method}, idle", request, generation)


async def test_a_cached_prompt_is_computed_anew_with_new_weights(bench: PolicyBench) -> None:
    engine, policies = bench.engine, bench.policies
    requests = [ask(number, prompt=prompt) for number, prompt in enumerate(prompts(4, [160], seed=9))]
    for _ in range(2):
        version = engine.version[0] + 1
        await engine.load_weights(policies.publish(version))
        for _ in range(2):
            for request, generation in zip(requests, await drawn(engine, requests), strict=True):
                bench.check_close("prompts of 160 tokens before and after updates", request, generation)


@pytest.mark.parametrize("method", ["memory", "checkpoint", "adapter"])
async def test_the_mark_of_an_update_in_flight_is_the_first_token_of_the_new_weights(
    bench: PolicyBench, method: str
) -> None:
    engine, policies = bench.engine, bench.policies
    begin = engine.version[0] + 1
    count = updates_of(bench)
    updates = [policies.publish(version, method, change=0.2) for version in range(begin, begin + count)]
    # More than have a slot, so that some begin during the updates, and of many lengths, so that some end.
    requests = [
        ask(number, prompt=prompt, max_tokens=length, min_tokens=length)
        for number, prompt in enumerate(prompts(150, range(4, 40), seed=begin))
        for length in [(60 + number) // workers_of(bench.kind) ** 2]
    ]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(engine.generate(request)) for request in requests]
        in_flight = []
        for update in updates:
            goal = engine.stats().tokens_total + 400
            await until(lambda goal=goal: engine.stats().tokens_total >= goal or all(task.done() for task in tasks))
            in_flight.append(engine.stats().running)
            await bench.load(update, f"{method}, in flight")
    assert max(in_flight) >= 100
    bench.note(f"updates with 100 or more requests in flight, {method}", sum(count >= 100 for count in in_flight))
    marks = 0
    for number, (request, task) in enumerate(zip(requests, tasks, strict=True)):
        generation = task.result()
        bench.check_close(f"{count} updates, {method}, in flight", request, generation)
        if len(generation.spans) > 1:
            marks += len(generation.spans) - 1
            # One token later it would be seen.
            moved = later(generation.spans, 1 + number % (len(generation.spans) - 1))
            assert policies.error(request, generation, moved) > APART
    assert marks >= 5 * count
    bench.note(f"marks between versions in {len(requests)} requests, {method}", marks)


def later(spans: Sequence[Span], at: int) -> list[Span]:
    """The spans with the mark before number `at` one token later."""
    before, after = spans[at - 1], spans[at]
    moved = msgspec.structs.replace(before, end=before.end + 1), msgspec.structs.replace(after, start=after.start + 1)
    return [span for span in (*spans[: at - 1], *moved, *spans[at + 1 :]) if span.end > span.start]


async def test_weights_that_are_none_of_this_model_are_refused_in_flight(bench: PolicyBench) -> None:
    engine, policies = bench.engine, bench.policies
    tensors = load_file(policies.base / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    stem = name.removesuffix(".weight")
    wrong = {
        "NaN": {**tensors, name: tensors[name] * float("nan")},
        "lack": {key: value for key, value in tensors.items() if key != name},
        "unknown": {**tensors, "model.layers.9.mlp.up_proj.weight": tensors[name]},
        "shape": {**tensors, name: tensors[name][1:].contiguous()},
        "has shapes": {stem + A: torch.ones(2, 63), stem + B: torch.ones(96, 2)},
        "differ": {"model.layers.9" + A: torch.ones(2, 64), "model.layers.9" + B: torch.ones(96, 2)},
        "infinity": {stem + A: torch.ones(2, 64) * float("inf"), stem + B: torch.ones(96, 2)},
    }
    version = engine.version
    request = ask(1, max_tokens=200, min_tokens=200)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(engine.generate(request))
        for number, (what, given) in enumerate(wrong.items()):
            with pytest.raises(RolloutError, match=what):
                await engine.load_weights(policies.announce(given, 900 + number, "checkpoint"))
            assert engine.version == version
    assert [(span.version, span.end) for span in task.result().spans] == [(version[0], 200)]
    bench.check_close("refused weights in flight", request, task.result())


class Watched:
    """The engine, and what was asked of it and drawn."""

    def __init__(self, engine: VllmRolloutEngine) -> None:
        self._engine = engine
        self.turns: list[tuple[GenerationRequest, Generation]] = []

    @property
    def version(self) -> tuple[int, int]:
        return self._engine.version

    async def generate(self, request: GenerationRequest) -> Generation:
        generation = await self._engine.generate(request)
        self.turns.append((request, generation))
        return generation


async def test_an_agent_program_with_an_update_between_two_turns_trains_what_was_drawn(bench: PolicyBench) -> None:
    watched: Any = Watched(bench.engine)
    version, _ = watched.version
    spec = ModelSpec(path="m", max_model_len=MAX_MODEL_LEN, max_prompt_tokens=200, max_response_tokens=200)
    settings = {"spec": spec, "tokenizer": open_tokenizer(bench.policies.base), "sampling": SamplingSpec(max_tokens=24)}
    async with running_endpoint() as endpoint, asking(endpoint, watched, **settings) as program:
        answer = message_of(await program.chat(user("2+3=")))
        await bench.engine.load_weights(bench.policies.publish(version + 1))
        await program.chat(user("2+3="), answer, user("7+1="))
        (result,) = program.served.results(RewardResult(value=1.0))
    (first, before), (second, after) = watched.turns
    assert second.prompt[: len(first.prompt) + len(before.tokens)] == first.prompt + before.tokens
    drawn_ones = result.loss_mask == 1
    assert tuple(result.tokens[result.prompt_tokens :][drawn_ones]) == before.tokens + after.tokens
    assert result.logprobs[drawn_ones].tolist() == pytest.approx([*before.logprobs, *after.logprobs])
    assert [span.version for span in (*before.spans, *after.spans)] == [version, version + 1]
    for request, generation in watched.turns:
        bench.check_close("an agent program over the endpoint, an update between its turns", request, generation)


@pytest.mark.parametrize("sampling", [{"temperature": 0.005}, {"temperature": 2.5}, {"presence_penalty": 3.0}])
async def test_what_vllm_would_draw_otherwise_is_refused(bench: PolicyBench, sampling: dict[str, float]) -> None:
    with pytest.raises(RolloutError, match=next(iter(sampling))):
        await bench.engine.generate(ask(1, **sampling))


async def test_each_worker_process_has_its_share_of_the_heads_and_opens_weights_itself(bench: PolicyBench) -> None:
    engine, workers = bench.engine, workers_of(bench.kind)
    assert len(engine.pids) == (1 if ON_GPU else 1 + workers), "on a GPU the process that schedules computes"
    heads, before = zip(*await engine._call("rollout_share", all_workers=True), strict=True)
    assert heads == (2 // workers,) * workers
    await bench.load(bench.policies.publish(engine.version[0] + 1, "checkpoint"), "checkpoint, idle")
    _, after = zip(*await engine._call("rollout_share", all_workers=True), strict=True)
    assert after == tuple(count + 1 for count in before)


@pytest.mark.parametrize(
    "check", [each for each in MODEL_CHECKS if each.__name__ != ENDS], ids=lambda each: each.__name__
)
async def test_the_contract_of_rollout_engines(check: Check, bench: PolicyBench) -> None:
    """After all that look at log-probabilities: the weights of the contract are not theirs."""
    await check(bench.contract())


async def test_an_engine_of_which_a_process_is_killed_or_stopped_says_so_and_leaves_none(bench: PolicyBench) -> None:
    """The last test: it does so to vLLM's first or last process, another for each kind of model."""
    engine = bench.engine
    assert len(engine.pids) >= (1 if ON_GPU else 2)
    place = os.environ[VARIABLE]
    assert sockets_in(place)
    assert {os.getsid(pid) for pid in engine.pids} == {os.getsid(0)}
    stop, kill = signal.SIGSTOP, signal.SIGKILL
    strike, which = [(stop, 0), (stop, -1), (kill, 0), (kill, -1), (kill, -1), (stop, 1)][KINDS.index(bench.kind)]
    victim = engine.pids[which]
    says = f"hangs: .*{victim} stopped" if strike is stop else f"process {victim} ended"
    requests = [ask(number, max_tokens=200, min_tokens=200) for number in range(SLOTS + 10)]
    tasks = [asyncio.ensure_future(engine.generate(request)) for request in requests]
    await until(lambda: engine.stats().running == SLOTS)
    unnamed = [line.endswith("(deleted)") for line in exchanged_by(engine.pids)]
    assert unnamed == [True] * len(unnamed), "none may stay, whoever is killed"
    assert bool(unnamed) == (workers_of(bench.kind) > 1 and SHARES_MEMORY)
    engine.watch(3.0, SystemClock())
    os.kill(victim, strike)
    async with asyncio.timeout(60):
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(result) for result in results} == {RolloutError}
    assert re.search(says, engine.stats().error)
    for again in (engine.generate(ask()), engine.load_weights(bench.policies.publish(999))):
        with pytest.raises(RolloutError, match=says):
            await again
    await engine.close()
    assert not sockets_in(place)
    assert not [pid for pid in engine.pids if stays(pid)]
