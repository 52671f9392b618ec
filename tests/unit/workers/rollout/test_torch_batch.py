"""The torch engine's batch against the models themselves: tokens, log-probabilities, swaps, determinism."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import ARCHITECTURES, MAX_LEN, make_model, network_of, prompts_of, run, running
from transformers import AutoModelForCausalLM

from rftd.ops.errors import DataError, RolloutError
from rftd.workers.rollout.engines.torch.batch import Batch
from rftd.workers.rollout.engines.torch.network import Network
from rftd.workers.rollout.engines.torch.trial import try_model

ModelOf = Callable[[str], Path]


def batch_of(network: Network, *, slots: int = 8, deterministic: bool = False) -> Batch:
    batch = Batch(network, slots=slots, max_len=MAX_LEN, deterministic=deterministic)
    batch.swapped((0, 0))
    return batch


def logprobs_of(model: torch.nn.Module, prompt: tuple[int, ...], tokens: tuple[int, ...]) -> torch.Tensor:
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits.float(), -1)  # [R, V]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("deterministic", [False, True])
def test_greedy_tokens_equal_generate(model_of: ModelOf, architecture: str, deterministic: bool) -> None:
    folder = model_of(architecture)
    network = network_of(folder)
    try_model(network)
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")  # sdpa leaves out soft caps
    prompts = prompts_of(24)
    lengths = [1 + (7 * i) % 45 for i in range(len(prompts))]
    requests = [
        running(i, prompt, temperature=0.0, max_tokens=length)
        for i, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
    ]
    found = run(batch_of(network, deterministic=deterministic), requests)
    for i, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        with torch.no_grad():
            output = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=length)
        expected = tuple(output[0, len(prompt) :].tolist())
        assert found[i].tokens == expected
        assert found[i].finish == ("stop" if expected[-1] == 2 else "length")
        logprobs = logprobs_of(model, prompt, expected).gather(1, torch.tensor(expected).unsqueeze(1))
        assert found[i].logprobs == pytest.approx(logprobs.squeeze(1).tolist(), abs=1e-4)


def test_drawn_tokens_carry_the_log_probability_at_their_temperature(model_of: ModelOf) -> None:
    folder = model_of("qwen2")
    model = AutoModelForCausalLM.from_pretrained(folder)
    prompts = prompts_of(12, seed=2)
    requests = [
        running(i, p, temperature=0.7, top_k=20, top_p=0.9, max_tokens=20, min_tokens=3) for i, p in enumerate(prompts)
    ]
    for i, found in run(batch_of(network_of(folder)), requests).items():
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*prompts[i], *found.tokens]])).logits[0, len(prompts[i]) - 1 : -1]
        expected = torch.log_softmax(logits / 0.7, -1).gather(1, torch.tensor(found.tokens).unsqueeze(1)).squeeze(1)
        assert found.logprobs == pytest.approx(expected.tolist(), abs=1e-4)
        assert 2 not in found.tokens[:3]


@pytest.mark.parametrize("architecture", ["qwen2", "gpt_neox"])
def test_half_precision_stays_near(model_of: ModelOf, architecture: str) -> None:
    folder = model_of(architecture)
    network = network_of(folder, dtype="bfloat16")
    try_model(network)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    prompt = prompts_of(1, seed=3)[0]
    found = run(batch_of(network), [running(i, prompt, max_tokens=20, min_tokens=20) for i in range(6)])
    for one in found.values():
        expected = logprobs_of(model, prompt, one.tokens).gather(1, torch.tensor(one.tokens).unsqueeze(1)).squeeze(1)
        assert one.logprobs == pytest.approx(expected.tolist(), abs=0.2)


def test_columns_are_shifted_without_a_trace(model_of: ModelOf) -> None:
    # 60 requests through 3 slots: `end` passes the last column many times, and long prompts join short rows.
    network = network_of(model_of("llama"))
    prompts = prompts_of(60, seed=5, longest=60)
    sampling = {"max_tokens": 15, "min_tokens": 15}
    apart = {i: run(batch_of(network, slots=1), [running(i, p, **sampling)])[i] for i, p in enumerate(prompts)}
    together = run(batch_of(network, slots=3), [running(i, p, **sampling) for i, p in enumerate(prompts)])
    for i, found in together.items():
        assert found.tokens == apart[i].tokens
        assert found.logprobs == pytest.approx(apart[i].logprobs, abs=1e-4)


@pytest.mark.parametrize("architecture", ["qwen2", "gpt_neox"])
def test_requests_of_one_prompt_are_computed_once_until_they_part(
    model_of: ModelOf, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = network_of(model_of(architecture))
    prompts = prompts_of(3, seed=8)
    group = [
        running(i, prompts[i % 3], temperature=0.3 if i % 2 else 1.0, max_tokens=3 + i % 9, min_tokens=2)
        for i in range(24)
    ]
    apart = {i: run(batch_of(network, slots=1), [copy.deepcopy(one)])[i] for i, one in enumerate(group)}
    asked, decode = [], network.decode

    def counted(ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        asked.append(len(ids))
        return decode(ids, *rest)

    monkeypatch.setattr(network, "decode", counted)
    together = run(batch_of(network, slots=24), group)
    for i, found in together.items():
        assert (found.tokens, found.finish) == (apart[i].tokens, apart[i].finish)
        assert found.logprobs == pytest.approx(apart[i].logprobs, abs=1e-4)
    different = [
        len({(i % 3, one.tokens[:length]) for i, one in apart.items() if len(one.tokens) > length})
        for length in range(1, 12)
    ]
    assert asked == [count for count in different if count]


def test_deterministic_bits_do_not_depend_on_neighbours(model_of: ModelOf) -> None:
    network = network_of(model_of("qwen2"))
    prompts = prompts_of(20, seed=6, longest=50)
    requests = [running(i, p, max_tokens=5 + i) for i, p in enumerate(prompts)]
    alone = {
        i: run(batch_of(network, deterministic=True), [running(i, p, max_tokens=5 + i)])[i]
        for i, p in enumerate(prompts)
    }
    used = batch_of(network, deterministic=True)
    assert run(used, requests) == alone
    again = [running(i, prompts[i], max_tokens=5 + i) for i in reversed(range(20))]
    assert run(used, again) == alone


def test_a_swap_between_two_tokens(model_of: ModelOf, tmp_path: Path) -> None:
    old = AutoModelForCausalLM.from_pretrained(model_of("qwen2"))
    new = AutoModelForCausalLM.from_pretrained(make_model(tmp_path / "new", "qwen2", seed=9))
    network = network_of(model_of("qwen2"))
    batch = batch_of(network)

    def swap(step: int) -> None:
        if step == 5:
            network.assign(new.state_dict())
            batch.swapped((1, 0))

    prompts = prompts_of(8, seed=7)
    sampling = {"temperature": 0.0, "max_tokens": 16, "min_tokens": 16}
    found = run(batch, [running(i, p, **sampling) for i, p in enumerate(prompts)], between=swap)
    for i, prompt in enumerate(prompts):
        # One token at joining, one in each of the steps 0 to 4, the rest from the new weights over the old cache.
        assert [(s.version, s.start, s.end) for s in found[i].spans] == [(0, 0, 6), (1, 6, 16)]
        assert found[i].tokens == continued(old, new, prompt, 6, 16)


def continued(
    old: torch.nn.Module, new: torch.nn.Module, prompt: tuple[int, ...], at: int, end: int
) -> tuple[int, ...]:
    """Greedy, without end of sequence: tokens [0, at) from `old`, the others from `new`, over one cache."""
    ids, cache, tokens = torch.tensor([prompt]), None, []
    for i in range(end):
        with torch.no_grad():
            output = (old if i < at else new)(input_ids=ids, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        logits = output.logits[0, -1].index_fill(0, torch.tensor([2]), float("-inf"))
        tokens.append(int(logits.argmax()))
        ids = torch.tensor([[tokens[-1]]])
    return tuple(tokens)


def test_weights_of_another_model_change_nothing(model_of: ModelOf) -> None:
    network = network_of(model_of("qwen2"))
    own = {name: tensor.clone() for name, tensor in network.model.state_dict().items()}
    name = "model.layers.1.self_attn.k_proj.weight"
    for tensors in (
        {n: t for n, t in own.items() if n != name},
        {**own, "more": torch.ones(1)},
        {**own, name: own[name][:-1]},
        {**own, name: own[name] * float("inf")},
    ):
        with pytest.raises(RolloutError, match=r"the new weights .*(self_attn.k_proj|more)"):
            network.assign({n: t * 2 if n != name else t for n, t in tensors.items()})
    assert all(torch.equal(own[n], t) for n, t in network.model.state_dict().items())
    network.assign({n: t for n, t in own.items() if n != "lm_head.weight"})  # tied: either name will do


def test_a_broken_number_fails_its_request_only(model_of: ModelOf) -> None:
    network = network_of(model_of("gpt2"))  # learned positions: one can be broken
    with torch.inference_mode():
        network.model.transformer.wpe.weight[40] = float("nan")
        batch = batch_of(network)
        short, long = (
            running(0, (20,) * 10, max_tokens=20, min_tokens=20),
            running(1, (20,) * 38, max_tokens=20, min_tokens=20),
        )
        done = batch.join([short, long])
        while batch.live:
            done += batch.step()
    results = {one.running.request.id.int: one.result for one in done}
    assert isinstance(results[1], RolloutError)
    assert not isinstance(results[0], RolloutError)
    assert len(results[0].tokens) == 20


def test_what_cannot_be_run_is_said_at_opening(model_of: ModelOf, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no model folder"):
        network_of(tmp_path / "absent")
    with pytest.raises(DataError, match="cannot be loaded"):
        network_of(tmp_path)
    with pytest.raises(DataError, match="no dtype 'float31'"):
        network_of(tmp_path, dtype="float31")
    network = network_of(model_of("llama"))
    try_model(network)
    assert network._fused is not None
    network._fused._cos.mul_(0.5)  # stands for an architecture whose arithmetic the lean forward does not know
    with pytest.raises(RolloutError, match="cannot run LlamaForCausalLM: its logits differ"):
        try_model(network)
