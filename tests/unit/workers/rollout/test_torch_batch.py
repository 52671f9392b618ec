"""The torch engine's batch against the models themselves: tokens, log-probabilities, swaps, determinism."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs
from synthetic.models.tiny_models import (
    ARCHITECTURES,
    MAX_LEN,
    MOVING,
    make_model,
    network_of,
    prompts_of,
    run,
    running,
    slow_but,
)
from transformers import AutoModelForCausalLM

from rftd.ops.errors import DataError, RolloutError
from rftd.workers.engines.torch.rollout.batch import Batch
from rftd.workers.engines.torch.rollout.network import Network
from rftd.workers.engines.torch.rollout.trial import try_model
from rftd.workers.engines.torch.rollout.uncached import Way

ModelOf = Callable[[str], Path]


def batch_of(network: Network, *, slots: int = 8, deterministic: bool = False, ahead: bool = False) -> Batch:
    batch = Batch(network, slots=slots, max_len=MAX_LEN, deterministic=deterministic, ahead=ahead)
    batch.swapped((0, 0))
    return batch


def logprobs_of(model: torch.nn.Module, prompt: tuple[int, ...], tokens: tuple[int, ...]) -> torch.Tensor:
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits.float(), -1)  # [R, V]


PROMPTS = prompts_of(24)
LENGTHS = [1 + (7 * i) % 45 for i in range(len(PROMPTS))]
Generated = list[tuple[tuple[int, ...], list[float]]]
Answers = Callable[[str], Generated]


@pytest.fixture(scope="module")
def generated(model_of: ModelOf) -> Answers:
    """The greedy tokens of transformers and their log-probabilities, per prompt; made once per architecture."""
    made: dict[str, Generated] = {}

    def answers(architecture: str) -> Generated:
        if architecture not in made:
            folder = model_of(architecture)
            # sdpa leaves out soft caps
            model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
            made[architecture] = []
            for prompt, length in zip(PROMPTS, LENGTHS, strict=True):
                with torch.no_grad():
                    output = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=length)
                tokens = tuple(output[0, len(prompt) :].tolist())
                logprobs = logprobs_of(model, prompt, tokens).gather(1, torch.tensor(tokens).unsqueeze(1))
                made[architecture].append((tokens, logprobs.squeeze(1).tolist()))
        return made[architecture]

    return answers


@pytest.mark.parametrize("architecture", slow_but("qwen2 gemma2 gpt_neox", ARCHITECTURES))
@pytest.mark.parametrize(("deterministic", "ahead"), [(False, False), (True, False), (False, True)])
def test_greedy_tokens_equal_generate(
    model_of: ModelOf, generated: Answers, architecture: str, deterministic: bool, ahead: bool
) -> None:
    network = network_of(model_of(architecture))
    try_model(network)
    requests = [
        running(i, prompt, temperature=0.0, max_tokens=length)
        for i, (prompt, length) in enumerate(zip(PROMPTS, LENGTHS, strict=True))
    ]
    found = run(batch_of(network, deterministic=deterministic, ahead=ahead), requests)
    for i, (tokens, logprobs) in enumerate(generated(architecture)):
        assert found[i].tokens == tokens
        assert found[i].finish == ("stop" if tokens[-1] == 2 else "length")
        assert found[i].logprobs == pytest.approx(logprobs, abs=1e-4)


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


@pytest.mark.parametrize("deterministic", [False, True])
def test_steps_that_begin_ahead_of_the_last_ones_tokens_draw_the_same(model_of: ModelOf, deterministic: bool) -> None:
    """A GPU is driven so; responses end, stop texts come, and requests arrive and leave in between."""
    network = network_of(model_of("qwen2"))
    prompts = prompts_of(40, seed=11)
    stop = tuple(network.tokenizer.decode([token]) for token in (20, 31, 42))

    def drawn(ahead: bool) -> dict[int, tuple[tuple[int, ...], tuple[float, ...]]]:
        batch = batch_of(network, slots=6, deterministic=deterministic, ahead=ahead)
        waiting = [
            running(i, prompt, max_tokens=4 + i % 30, min_tokens=i % 5, stop=stop if i % 3 == 0 else ())
            for i, prompt in enumerate(prompts)
        ]
        done = []
        total = 0
        with torch.inference_mode():
            while waiting or batch.live:
                if count := min(batch.free, len(waiting)):
                    done += batch.join(waiting[:count])
                    del waiting[:count]
                if leaving := [one for one in batch.live if one.request.id.int % 7 == 3 and len(one.tokens) > 2]:
                    done += batch.caught_up()
                    batch.drop(leaving)
                if batch.live:
                    done += batch.step()
        found = {}
        for one in done:
            assert not isinstance(one.result, RolloutError)
            total += len(one.result.tokens)
            if one.running.request.id.int % 7 != 3:
                found[one.running.request.id.int] = (one.result.tokens, one.result.logprobs)
        assert batch.tokens_total >= total
        return found

    plain = drawn(False)
    ahead = drawn(True)
    assert set(ahead) == set(plain) == {i for i in range(40) if i % 7 != 3}
    for i, (tokens, logprobs) in plain.items():
        assert ahead[i][0] == tokens
        assert ahead[i][1] == pytest.approx(logprobs, abs=1e-5)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_swap_between_two_tokens(model_of: ModelOf, tmp_path: Path, ahead: bool) -> None:
    old = AutoModelForCausalLM.from_pretrained(model_of("qwen2"))
    new = AutoModelForCausalLM.from_pretrained(make_model(tmp_path / "new", "qwen2", seed=9))
    network = network_of(model_of("qwen2"))
    batch = batch_of(network, ahead=ahead)

    def swap(step: int) -> None:
        if step == 5 - ahead:  # then a sixth token was under way, and is taken
            assert not batch.caught_up()
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
            network.verified({n: t * 2 if n != name else t for n, t in tensors.items()})
    assert all(torch.equal(own[n], t) for n, t in network.model.state_dict().items())
    tied = network.verified({n: t for n, t in own.items() if n != "lm_head.weight"})  # either name will do
    network.assign(tied)


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


@pytest.mark.parametrize(
    ("deterministic", "ahead", "ends"),
    [
        (False, False, "broken"),
        (True, False, "broken"),
        (False, True, "broken"),
        (False, True, "before it is read"),
    ],
)
def test_keys_that_are_no_numbers_do_not_reach_who_has_the_row_next(
    model_of: ModelOf, deterministic: bool, ahead: bool, ends: str
) -> None:
    network = network_of(model_of("gpt2"))
    batch = batch_of(network, slots=2, deterministic=deterministic, ahead=ahead)
    sampling = {"max_tokens": 30, "min_tokens": 30, "ignore_eos": True, "temperature": 0.0}
    stays = running(0, (20,) * 5, **sampling)
    if ends == "broken":
        gone = running(1, (20,) * 38, **sampling)
    else:  # a step ahead of its end computes the token after it
        gone = running(1, (20,) * 39, max_tokens=30, min_tokens=1, logit_bias=((2, 100.0),))
    follows = running(2, (30, 31), max_tokens=10, min_tokens=10)
    expected = run(batch_of(network, slots=2), [copy.deepcopy(follows)])[2]
    with torch.inference_mode():
        network.model.transformer.wpe.weight[40] = float("nan")
        assert not batch.join([stays])
        assert not batch.join([gone])
        done = []
        while not done:
            done = batch.step()
        assert [one.running for one in done] == [gone]
        assert isinstance(done[0].result, RolloutError) is (ends == "broken")
        for _ in range(4):
            assert not batch.step()
        done = batch.join([follows])
        while follows in batch.live:
            done += batch.step()
    assert [one.running for one in done] == [follows]
    assert not isinstance(done[0].result, RolloutError), done[0].result
    assert done[0].result.tokens == expected.tokens


def test_a_broken_prompt_leaves_nothing_in_its_row(model_of: ModelOf) -> None:
    network = network_of(model_of("gpt2"))
    batch = batch_of(network, slots=2)
    with torch.inference_mode():
        network.model.transformer.wpe.weight[40] = float("nan")
        stays = running(0, (20,) * 5, max_tokens=30, min_tokens=30)
        assert not batch.join([stays])
        (broken,) = batch.join([running(1, (20,) * 45, max_tokens=9)])
    assert isinstance(broken.result, RolloutError)
    assert all(torch.isfinite(stored).all() for stored in (*batch._cache._keys, *batch._cache._values))


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gpt2", "mistral_sliding", "gemma2", "llama4_chunked"])
def test_float64_is_as_exact_as_it_says(model_of: ModelOf, architecture: str) -> None:
    network = network_of(model_of(architecture), dtype="float64")
    assert try_model(network) is Way.SLOTS
    prompts = prompts_of(6)
    sampling = {"temperature": 0.0, "max_tokens": 12}
    together = run(batch_of(network), [running(i, prompt, **sampling) for i, prompt in enumerate(prompts)])
    single = network_of(model_of(architecture))
    alone = run(batch_of(single, slots=1), [running(i, prompt, **sampling) for i, prompt in enumerate(prompts)])
    assert {i: one.tokens for i, one in together.items()} == {i: one.tokens for i, one in alone.items()}


def test_what_cannot_be_run_is_said_at_opening(model_of: ModelOf, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no model folder"):
        network_of(tmp_path / "absent")
    with pytest.raises(DataError, match=r"config\.json cannot be read"):
        network_of(tmp_path)
    with pytest.raises(DataError, match="no dtype 'float31'"):
        network_of(tmp_path, dtype="float31")
    network = network_of(model_of("llama"))
    try_model(network)
    assert network.fused is not None
    network.fused._cos.mul_(0.5)  # stands for an architecture whose arithmetic the lean forward does not know
    with capture_logs() as logs:
        assert try_model(network) is Way.OWN_CACHE
    assert logs[0]["event"] == "rollout.slower_way"
    assert logs[0]["model_type"] == "llama"
    assert logs[0]["because"].startswith("its logits differ by ")
    network.model.register_forward_hook(by_length)
    with pytest.raises(RolloutError, match=r"cannot run llama models \(LlamaForCausalLM\): its logits differ"):
        try_model(network)


def by_length(_model: object, _arguments: object, output: Any) -> Any:
    """Logits that depend on how many tokens are computed at once: no way of computing them by token is exact."""
    output.logits = output.logits * (1 + output.logits.shape[1])
    return output


@pytest.mark.parametrize("turning", MOVING)
def test_rotations_that_depend_on_length_are_refused_beyond_their_own(tmp_path: Path, turning: str) -> None:
    """A prompt would be computed otherwise beside a longer one, and a token otherwise when it is trained."""
    for tokens, beyond in ((MAX_LEN - 1, True), (MAX_LEN, False)):
        network = network_of(make_model(tmp_path / str(tokens), MOVING[turning](tokens), seed=4))
        if not beyond:
            try_model(network)
            continue
        with pytest.raises(RolloutError, match=f"its rotary embedding '{turning}' .* longer than {tokens} ") as raised:
            try_model(network)
        assert raised.value.fix == f"set model.max_model_len to at most {tokens}, or use another model"


def test_positions_that_a_model_counts_itself_are_computed_alone_where_they_matter(tmp_path: Path) -> None:
    settings = {**ARCHITECTURES["llama4_chunked"], "floor_scale": MAX_LEN}
    with capture_logs() as logs:
        assert try_model(network_of(make_model(tmp_path, settings, seed=4))) is Way.OWN_CACHE
    assert logs[0]["because"].startswith(f"from token {MAX_LEN} on it scales")
