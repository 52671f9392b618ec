"""The slower way: each request alone, with transformers' own cache or none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from synthetic.models.families import FAMILIES
from synthetic.models.tiny_models import MAX_LEN, make_model, network_of, prompts_of, run, running

from rftd.workers.engines.torch.rollout.trial import try_model
from rftd.workers.engines.torch.rollout.uncached import UncachedRequests, Way, batch_of


@pytest.mark.parametrize(("family", "way"), [("lfm2", Way.OWN_CACHE), ("openai-gpt", Way.RECOMPUTED)])
def test_tokens_depend_on_weights_prompt_and_seed_alone(tmp_path: Path, family: str, way: Way) -> None:
    network = network_of(make_model(tmp_path, FAMILIES[family], seed=4))
    assert try_model(network) is way
    prompts = prompts_of(5, seed=3)
    sampling = {"max_tokens": 12, "min_tokens": 4, "top_k": 20, "processed_logprobs": True}
    found = []
    for slots in (1, 3):
        batch = batch_of(network, way, slots=slots, max_len=MAX_LEN, deterministic=False)
        assert isinstance(batch, UncachedRequests)
        batch.swapped((0, 0))
        found.append(run(batch, [running(i, prompt, **sampling) for i, prompt in enumerate(prompts)]))
        assert batch.tokens_total == sum(len(one.tokens) for one in found[-1].values())
        assert batch.free == slots
    assert found[0] == found[1]
    assert all(len(one.processed_logprobs) == len(one.tokens) for one in found[0].values())


def test_a_cancelled_request_frees_its_slot_and_changes_nothing_for_others(tmp_path: Path) -> None:
    network = network_of(make_model(tmp_path, FAMILIES["lfm2"], seed=4))
    batch = batch_of(network, try_model(network), slots=2, max_len=MAX_LEN, deterministic=False)
    batch.swapped((0, 0))
    gone, stays = (running(i, prompt, max_tokens=9, min_tokens=9) for i, prompt in enumerate(prompts_of(2)))
    with torch.inference_mode():
        assert not batch.join([gone, stays])
        batch.step()
        batch.drop([gone])
        assert batch.live == [stays]
        assert batch.free == 1
        while batch.live:
            batch.step()
    again = running(1, stays.request.prompt, max_tokens=9, min_tokens=9)
    run(batch, [again])
    assert again.tokens == stays.tokens
    assert len(gone.tokens) == 2
