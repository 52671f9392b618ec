"""The memory that generation takes is known before the model is loaded, and refused with the arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from synthetic.models.families import FAMILIES
from synthetic.models.tiny_models import MAX_LEN, make_model, network_of, prompts_of, run, running
from transformers import AutoConfig, AutoModelForCausalLM

from rftd.ops.errors import DeviceMemoryError
from rftd.workers.devices import device_memory
from rftd.workers.devices.device_memory import settings_of
from rftd.workers.engines.torch.rollout import engine
from rftd.workers.engines.torch.rollout.batch import Batch
from rftd.workers.engines.torch.rollout.memory import check_generation, generation_needs
from rftd.workers.engines.torch.rollout.trial import try_model
from rftd.workers.engines.torch.rollout.uncached import UncachedRequests, Way
from rftd.workers.models.cached_tokens import least_cache_bytes

ModelOf = Callable[[str], Path]
SLOTS = 3


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gpt2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_said_is_what_a_response_leaves_there(model_of: ModelOf, architecture: str, dtype: str) -> None:
    folder = model_of(architecture)
    network = network_of(folder, dtype=dtype)
    weights, cache = generation_needs(folder, slots=SLOTS, max_len=MAX_LEN, dtype=network.dtype)
    batch = Batch(network, slots=SLOTS, max_len=MAX_LEN, deterministic=False)
    run(batch, [running(0, prompts_of(1)[0], max_tokens=3)])
    stored = [*batch._cache._keys, *batch._cache._values]
    assert stored
    assert cache.size_bytes == sum(each.nbytes for each in stored)
    sizes = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in network.model.parameters()}
    assert weights.size_bytes == pytest.approx(sum(sizes.values()), rel=0.02), "but for buffers of older files"


def held_bytes(batch: UncachedRequests) -> tuple[int, int]:
    """The size of keys and values, and of states, in the caches of the running requests."""
    layers = [layer for text, _ in batch._texts.values() if text._cache is not None for layer in text._cache.layers]
    sizes = [
        sum(each.nbytes for layer in layers for name in names if (each := getattr(layer, name, None)) is not None)
        for names in (("keys", "values"), ("conv_states", "recurrent_states"))
    ]
    return sizes[0], sizes[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        *((family, "float32") for family in ("mamba", "falcon_h1", "jamba", "lfm2", "qwen3_next", "recurrent_gemma")),
        *((family, "bfloat16") for family in ("mamba2", "qwen3_next")),
    ],
)
def test_states_of_recurrent_layers_are_counted_as_they_are_held(tmp_path: Path, family: str, dtype: str) -> None:
    folder = make_model(tmp_path, FAMILIES[family], seed=4)
    network = network_of(folder, dtype=dtype)
    way = try_model(network)
    assert way is (Way.RECOMPUTED if family == "recurrent_gemma" else Way.OWN_CACHE)
    _, cache, states = generation_needs(folder, slots=SLOTS, max_len=MAX_LEN, dtype=network.dtype)
    batch = UncachedRequests(network, way, slots=SLOTS)
    drawn = 6
    with torch.inference_mode():
        batch.join(
            [running(i, (20 + i,) * (MAX_LEN - drawn), max_tokens=drawn, min_tokens=drawn) for i in range(SLOTS)]
        )
        while any(len(each.tokens) < drawn - 1 for each in batch.live):
            assert not batch.step()
        assert len(batch.live) == SLOTS
        cache_bytes, state_bytes = held_bytes(batch)
    assert states.size_bytes == state_bytes
    assert cache.size_bytes == pytest.approx(cache_bytes, rel=2.5 / MAX_LEN), "but for the tokens that are not computed"
    assert bool(cache_bytes) is (family not in ("mamba", "mamba2", "recurrent_gemma"))
    assert bool(state_bytes) is (family != "recurrent_gemma")


@pytest.mark.parametrize(
    "family", ["llama", "mistral_sliding", "gemma2", "llama4_chunked", "cohere2", "gpt2", "falcon", "lfm2", "falcon_h1"]
)
def test_what_is_refused_at_submission_is_never_less_than_what_is_held(tmp_path: Path, family: str) -> None:
    """The sum of a submission is by the settings alone; a model may keep more than it says, and not less."""
    settings = dict(FAMILIES[family])
    base = AutoConfig.for_model(settings.pop("model_type"))
    config = AutoConfig.for_model(
        base.model_type, **{key: value for key, value in settings.items() if hasattr(base, key)}
    )
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    tokens = 40
    with torch.inference_mode():
        layers = model(input_ids=torch.zeros(1, tokens, dtype=torch.long, device="meta")).past_key_values.layers
    kept = [getattr(layer, name, None) for layer in layers for name in ("keys", "values")]
    held_bytes = sum(each.nbytes for each in kept if isinstance(each, torch.Tensor))
    least_bytes = least_cache_bytes(settings_of(tmp_path), tokens, 4)
    assert least_bytes in (0, held_bytes)
    assert (least_bytes > 0) is (family not in ("falcon", "lfm2", "falcon_h1")), "what is kept otherwise is not judged"


def test_states_are_named_where_there_is_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_model(tmp_path, FAMILIES["mamba"], seed=4)
    monkeypatch.setattr(device_memory, "free_on", lambda device: 1024)
    with pytest.raises(DeviceMemoryError, match="recurrent states of 3 requests 18 KiB") as refused:
        check_generation(folder, slots=SLOTS, max_len=MAX_LEN, dtype=torch.float32, device=torch.device("cpu"))
    assert "keys and values" not in str(refused.value)


@pytest.mark.anyio
async def test_a_device_without_room_is_refused_before_the_model_is_read(
    model_of: ModelOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model_of("llama")
    needed = sum(
        need.size_bytes for need in generation_needs(folder, slots=SLOTS, max_len=MAX_LEN, dtype=torch.float32)
    )
    monkeypatch.setattr(device_memory, "free_on", lambda device: needed - 1)
    monkeypatch.setattr(engine.Network, "load", lambda *_, **__: pytest.fail("the model was read"))
    with pytest.raises(DeviceMemoryError, match=f"keys and values of 3 requests of {MAX_LEN} tokens") as refused:
        await engine.TorchRolloutEngine.open(str(folder), slots=SLOTS, max_model_len=MAX_LEN, threads=1)
    assert "runner_per_model" in str(refused.value)
    assert str(folder) in str(refused.value)
