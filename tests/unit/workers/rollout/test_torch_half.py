"""Half precision: scores, softmax and log-probabilities are float32's, so that rollouts mismatch the trainer less."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from synthetic.models.tiny_models import MAX_LEN, make_model, network_of, prompts_of, run, running
from transformers import AutoModelForCausalLM

from rftd.workers.engines.torch.rollout.attention import attend
from rftd.workers.engines.torch.rollout.batch import Batch

SHARP = 4.0
"""Larger queries and keys: scores of some tens, as trained models have them."""


@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize(("softcap", "sinks"), [(None, False), (20.0, False), (None, True)])
def test_attention_rounds_what_it_gathers_alone(queries: int, softcap: float | None, sinks: bool) -> None:
    """The difference to float64 is half a unit in the last place of bfloat16, however large the scores."""
    generator = torch.Generator().manual_seed(1)
    rows = 3
    heads = 4
    groups = 2
    columns = 40
    size = 16
    query = torch.randn(rows, heads, queries, size, generator=generator) * 5
    key, value = (torch.randn(rows, groups, columns, size, generator=generator) for _ in range(2))
    query = query.bfloat16()
    key = key.bfloat16()
    value = value.bfloat16()
    sink = torch.randn(heads, generator=generator).bfloat16() if sinks else None
    mask = torch.zeros(rows, 1, queries, columns, dtype=torch.bfloat16)
    found, _ = attend(torch.nn.Module(), query, key, value, mask, softcap=softcap, s_aux=sink)
    wide, _ = attend(
        torch.nn.Module(),
        query.double(),
        key.double(),
        value.double(),
        mask.double(),
        softcap=softcap,
        s_aux=None if sink is None else sink.double(),
    )
    torch.testing.assert_close(found.double(), wide, rtol=2.0**-8, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["qwen2", "llama", "gemma2", "gpt_oss"])
def test_rollouts_mismatch_no_more_than_transformers_own_decoding(tmp_path: Path, architecture: str) -> None:
    """k3 of drawn tokens (http://joschu.net/blog/kl-approx.html) against the same weights in float32."""
    folder = make_model(tmp_path, architecture, seed=4)
    whole = AutoModelForCausalLM.from_pretrained(folder)
    for name, weight in whole.named_parameters():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            weight.data.mul_(SHARP)
    whole.bfloat16().save_pretrained(folder)
    whole.float()
    half = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="eager")
    batch = Batch(network_of(folder, dtype="bfloat16"), slots=32, max_len=MAX_LEN, deterministic=False)
    batch.swapped((0, 0))
    prompts = prompts_of(32, seed=3)
    found = run(batch, [running(i, prompt, max_tokens=40, min_tokens=40) for i, prompt in enumerate(prompts)])
    ours = []
    theirs = []
    for i, prompt in enumerate(prompts):
        exact = of_whole(whole, prompt, found[i].tokens)
        ours.append(exact - torch.tensor(found[i].logprobs))
        theirs.append(exact - decoded(half, prompt, found[i].tokens))
    assert k3(torch.cat(ours)) <= k3(torch.cat(theirs))


def k3(difference: torch.Tensor) -> float:
    return (difference.exp() - 1 - difference).mean().item()


@torch.no_grad()
def of_whole(model: torch.nn.Module, prompt: tuple[int, ...], tokens: tuple[int, ...]) -> torch.Tensor:
    logits = model(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    return chosen(logits, tokens)


@torch.no_grad()
def decoded(model: torch.nn.Module, prompt: tuple[int, ...], tokens: tuple[int, ...]) -> torch.Tensor:
    output = model(input_ids=torch.tensor([prompt]), use_cache=True)
    logits = [output.logits[0, -1]]
    for token in tokens[:-1]:
        output = model(input_ids=torch.tensor([[token]]), past_key_values=output.past_key_values, use_cache=True)
        logits.append(output.logits[0, -1])
    return chosen(torch.stack(logits), tokens)


def chosen(logits: torch.Tensor, tokens: tuple[int, ...]) -> torch.Tensor:
    return torch.log_softmax(logits.float(), -1).gather(1, torch.tensor(tokens)[:, None])[:, 0]
