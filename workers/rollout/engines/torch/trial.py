"""A trial at opening: does the engine's cache give what the model itself gives?"""

from __future__ import annotations

import torch

from rftd.ops.errors import RolloutError
from rftd.workers.rollout.engines.torch import attention
from rftd.workers.rollout.engines.torch.cache import SlotCache
from rftd.workers.rollout.engines.torch.network import Network

_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}
_TOLERANCE_HALF = 0.1


def try_model(network: Network) -> None:
    """Runs a few tokens both ways. Raises RolloutError if the logits differ: the model cannot be run by this engine."""
    long = [(17 * i + 3) % network.vocabulary for i in range(7)]
    with torch.inference_mode():
        expected = _plain(network, long)
        try:
            found = _cached(network, long[-4:], long)
        except RolloutError:
            raise
        except Exception as error:  # an architecture may fail in its own way
            raise _unfit(network, f"{type(error).__name__}: {error}") from error
    scale = expected.abs().max().clamp(min=1.0)
    error_share = ((found - expected).abs().max() / scale).item()
    if not error_share <= _TOLERANCE.get(network.dtype, _TOLERANCE_HALF):
        raise _unfit(network, f"its logits differ by {error_share:.2g} of their scale")


def _plain(network: Network, tokens: list[int]) -> torch.Tensor:
    network.model.set_attn_implementation("eager")
    try:
        output = network.model(input_ids=torch.tensor([tokens], device=network.device), use_cache=False)
    finally:
        network.model.set_attn_implementation(attention.NAME)
    logits: torch.Tensor = output.logits[0, -1].float()
    return logits


def _cached(network: Network, short: list[int], long: list[int]) -> torch.Tensor:
    """The second row's logits: prefilled but for its last token beside a shorter prompt, then decoded."""
    prompts = [short, long[:-1]]
    _, prefilled = network.prefill(prompts)
    if not prefilled.keys:
        raise RolloutError("it keeps no keys and values")
    cache = SlotCache(slots=2, max_len=len(long) + 1, dtype=network.dtype, device=network.device)
    width = len(prompts[1])
    cache.reserve(0, 0, width)
    cache.place([0, 1], prefilled, [0, 1])
    cache.hide([width - len(prompt) for prompt in prompts])
    ids = torch.tensor([[short[-1]], [long[-1]]], device=network.device)
    positions = torch.tensor([[len(prompt)] for prompt in prompts], device=network.device)
    logits = network.decode(ids, positions, cache.window(2, width + 1), cache)
    return logits[1].float()


def _unfit(network: Network, why: str) -> RolloutError:
    name = type(network.model).__name__
    return RolloutError(f"the torch engine cannot run {name}: {why}", fix="use the vllm engine for this model")
