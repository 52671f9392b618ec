"""The trial at opening: the engine's logits are held against those of the model's own forward."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Final

import structlog
import torch

from rftd.ops.errors import RolloutError
from rftd.workers.engines.torch.rollout.alone import LoneText, Way
from rftd.workers.engines.torch.rollout.cache import SLACK_COLUMNS, SlotCache
from rftd.workers.engines.torch.rollout.network import Network
from rftd.workers.engines.torch.rollout.recordings import FixedSteps, Recorder
from rftd.workers.models.text_lengths import beyond, moving_rotation

log = structlog.get_logger(__name__)

_TOLERANCE: Final = {torch.float32: 1e-3, torch.float64: 1e-6}
_TOLERANCE_HALF: Final = 0.1
"""Half precision rounds each layer to three digits; a wrong mask or position differs by far more."""
_TEXT_TOKENS: Final = 7
_DECODED: Final = 3
"""Tokens at the end of a text that are decoded one by one; those before are prefilled."""
_PLAIN_SCORES: Final = 1 << 28
"""Attention scores of one layer that are held at once; a text of more is not computed in the model's own way."""


def try_model(network: Network) -> Way:
    """The fastest way in which the engine gives what the model itself gives.

    Texts are run both ways: a short one, and one beyond the last window, chunk or original length below `max_len`. A
    model that only a slower way fits is said in the log. Raises RolloutError, which names the model type, if the logits
    differ in every way: the model cannot be run by this engine.
    """
    moving = moving_rotation(network.model.config, network.max_len)
    if moving is not None:
        why, limit = moving
        raise _unfit(network, why, fix=f"set model.max_model_len to at most {limit}, or use another model")
    unfit = _outside_slots(network) or _difference(network, _cached)
    if unfit is None:
        return Way.SLOTS
    for own, way in product(_attentions(network), (Way.OWN_CACHE, Way.RECOMPUTED)):
        if own is not None:
            network.model.set_attn_implementation(own)
        differs = _difference(network, partial(_alone, way=way))
        if differs is None:
            kind = network.model.config.model_type
            log.warning("rollout.slower_way", model_type=kind, computed=way.value, because=unfit)
            return way
    raise _unfit(network, differs or unfit)


def try_recorder(network: Network, recorder: Recorder) -> str | None:
    """The reason for which recorded steps differ from the model itself, or None. The recordings are given up."""
    try:
        return _difference(network, partial(_cached, recorder=recorder))
    finally:
        recorder.forget()


def _attentions(network: Network) -> list[str | None]:
    """The attentions of transformers that are tried, the faster first; None is the one that it is loaded with."""
    if not network.takes_attention:
        return [None]
    return ["sdpa", "eager"] if network.model._supports_sdpa else ["eager"]


def _outside_slots(network: Network) -> str | None:
    """The reason for which the engine's own cache and attention are not even tried, or None."""
    if not network.takes_attention:
        return "it computes attention in a way of its own"
    return _counted_positions(network)


def _difference(network: Network, found_by: Callable[[Network, list[int]], torch.Tensor]) -> str | None:
    """The difference of these logits from the model's own, or the reason for which there are none; None if equal."""
    for length in _lengths(network):
        tokens = [(17 * i + 3) % network.vocabulary for i in range(length)]
        with torch.inference_mode():
            try:
                expected = _plain(network, tokens)
                found = found_by(network, tokens)
            except torch.OutOfMemoryError:
                raise
            except RolloutError as error:
                return error.what
            except Exception as error:  # an architecture may fail in its own way
                return f"{type(error).__name__}: {error}"
        scale = expected.abs().max().clamp(min=1.0)
        error_share = ((found - expected).abs().max() / scale).item()
        # Written so that NaN is a difference.
        if not error_share <= _TOLERANCE.get(network.dtype, _TOLERANCE_HALF):
            return f"its logits differ by {error_share:.2g} of their scale in a text of {length} tokens"
    return None


def _counted_positions(network: Network) -> str | None:
    """Llama 4 scales queries by the number of columns of the cache, which is a token's position only in a row alone."""
    config = network.model.config.get_text_config()
    scaled = getattr(config, "floor_scale", None)
    if scaled is None or not getattr(config, "attn_temperature_tuning", False):
        return None
    if network.max_len <= int(scaled) - SLACK_COLUMNS - 1:
        return None
    return f"from token {scaled} on it scales queries by a position that it counts itself"


def _lengths(network: Network) -> list[int]:
    found = beyond(network.model.config, network.max_len)
    return [_TEXT_TOKENS] if found is None else [_TEXT_TOKENS, max(_TEXT_TOKENS, found[1])]


def _plain(network: Network, tokens: list[int]) -> torch.Tensor:
    """The model's own logits at the last places  # [R, V]"""
    heads = getattr(network.model.config.get_text_config(), "num_attention_heads", None) or 1
    own = "sdpa" if heads * len(tokens) ** 2 > _PLAIN_SCORES else "eager"
    before = network.model.config._attn_implementation
    if network.takes_attention:
        network.model.set_attn_implementation(own)
    try:
        ids = torch.tensor([tokens], device=network.device)
        output = network.model(input_ids=ids, use_cache=False, **network.last_places(_DECODED))
    finally:
        if network.takes_attention:
            network.model.set_attn_implementation(before)
    logits: torch.Tensor = output.logits[0, -_DECODED:].float()
    return logits


def _cached(network: Network, tokens: list[int], *, recorder: Recorder | None = None) -> torch.Tensor:
    """The logits by the engine's cache: the text is prefilled but for its last tokens, which are decoded  # [R, V]"""
    begun = len(tokens) - _DECODED
    # Beside a shorter one, whose padding and hidden columns must not leak into it.
    prompts = [tokens[begun // 2 : begun], tokens[:begun]]
    _, prefilled = network.prefill(prompts)
    if not prefilled.keys:
        raise RolloutError("it keeps no keys and values")
    cache = SlotCache(slots=2, max_len=len(tokens), dtype=network.dtype, device=network.device)
    cache.reserve(0, 0, begun)
    cache.place([0, 1], prefilled, [0, 1])
    starts = [begun - len(prompt) for prompt in prompts]
    cache.hide(starts)
    ids = torch.zeros(2, 1, dtype=torch.long, device=network.device)
    positions = torch.tensor([[len(prompt)] for prompt in prompts], device=network.device)
    steps = None if recorder is None else FixedSteps(network, cache, recorder, ids=ids, positions=positions)
    if steps is not None:
        steps.arrange(starts)
    found = []
    for drawn in range(_DECODED):
        ids.fill_(tokens[begun + drawn])
        if steps is not None:
            logits = steps(2)
        else:
            logits = network.decode(ids, positions, cache.window(2, begun + drawn + 1), cache)
        found.append(logits[1].clone())
        cache.advance()
        positions += 1
    return torch.stack(found).float()


def _alone(network: Network, tokens: list[int], *, way: Way) -> torch.Tensor:
    """The logits by requests that are computed alone, a shorter one in turns with it  # [R, V]"""
    begun = len(tokens) - _DECODED
    starts = (begun // 2, 0)
    texts = [LoneText(network, way) for _ in starts]
    found = []
    for end in range(begun, len(tokens) + 1):
        for text, start in zip(texts, starts, strict=True):
            logits = text.logits(tokens[start:end])
        found.append(logits[0])
    return torch.stack(found[1:]).float()


def _unfit(network: Network, why: str, *, fix: str = "use another model") -> RolloutError:
    kind = network.model.config.model_type
    name = type(network.model).__name__
    return RolloutError(f"the torch engine cannot run {kind} models ({name}): {why}", fix=fix)
