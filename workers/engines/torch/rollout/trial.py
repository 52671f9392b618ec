"""The trial at opening: the engine's logits are compared with those of the model's own forward."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Final

import structlog
import torch

from rftd.ops.errors import RolloutError
from rftd.workers.engines.torch.rollout.cache import SLACK_COLUMNS, SlotCache
from rftd.workers.engines.torch.rollout.network import Network
from rftd.workers.engines.torch.rollout.recordings import FixedSteps, Recorder
from rftd.workers.engines.torch.rollout.uncached import UncachedText, Way
from rftd.workers.models.text_lengths import beyond, moving_rotation

log = structlog.get_logger(__name__)
"""Log of this module."""

_TOLERANCE: Final = {torch.float32: 1e-3, torch.float64: 1e-6}
"""Allowed difference of a logit, by the dtype of the weights."""
_TOLERANCE_HALF: Final = 0.1
"""Tolerance in half precision, which rounds each layer to three digits; a wrong mask or position differs by far more.
"""
_TEXT_TOKENS: Final = 7
"""Tokens of the short text."""
_DECODED: Final = 3
"""Number of tokens at the end of a text decoded one by one; earlier ones are prefilled."""
_PLAIN_SCORES: Final = 1 << 28
"""Maximum attention scores of one layer held at once; longer texts use another attention for the model's own logits."""


def try_model(network: Network) -> Way:
    """Returns the fastest computation of tokens by which the engine reproduces the model's own logits.

    Two texts are computed by both: a short one, and one beyond the last window, chunk or original length below
    `max_len`. A slower computation is reported in the log. Raises RolloutError, naming the model type, if every
    computation differs: the engine cannot run the model.
    """
    moving = moving_rotation(network.model.config, network.max_len)
    if moving is not None:
        why, limit = moving
        raise _unfit_error(network, why, fix=f"set model.max_model_len to at most {limit}, or use another model")
    unfit = _outside_slots(network) or _difference(network, _cached_logits)
    if unfit is None:
        return Way.SLOTS
    for attention_name, way in product(_attentions(network), (Way.OWN_CACHE, Way.RECOMPUTED)):
        if attention_name is not None:
            network.model.set_attn_implementation(attention_name)
        differs = _difference(network, partial(_uncached_logits, way=way))
        if differs is None:
            kind = network.model.config.model_type
            log.warning("rollout.slower_way", model_type=kind, computed=way.value, because=unfit)
            return way
    raise _unfit_error(network, differs or unfit)


def try_recorder(network: Network, recorder: Recorder) -> str | None:
    """Returns the reason why recorded steps differ from the model itself, or None; discards the recordings."""
    try:
        return _difference(network, partial(_cached_logits, recorder=recorder))
    finally:
        recorder.forget()


def _attentions(network: Network) -> list[str | None]:
    """Returns the attentions of transformers to try, the faster first; None stands for the loaded one."""
    if not network.takes_attention:
        return [None]
    return ["sdpa", "eager"] if network.model._supports_sdpa else ["eager"]


def _outside_slots(network: Network) -> str | None:
    """Returns the reason not to try the engine's own cache and attention, or None."""
    if not network.takes_attention:
        return "it has its own implementation of attention"
    return _counted_positions(network)


def _difference(network: Network, compute: Callable[[Network, list[int]], torch.Tensor]) -> str | None:
    """Returns the difference of these logits from the model's own, or the reason for their absence; None if equal."""
    for length in _lengths(network):
        tokens = [(17 * i + 3) % network.vocabulary for i in range(length)]
        with torch.inference_mode():
            try:
                expected = _own_logits(network, tokens)
                logits = compute(network, tokens)
            except torch.OutOfMemoryError:
                raise
            except RolloutError as error:
                return error.what
            except Exception as error:  # architectures may raise anything
                return f"{type(error).__name__}: {error}"
        scale = expected.abs().max().clamp(min=1.0)
        error_share = ((logits - expected).abs().max() / scale).item()
        # Written so that NaN counts as a difference.
        if not error_share <= _TOLERANCE.get(network.dtype, _TOLERANCE_HALF):
            return f"its logits differ by {error_share:.2g} of their scale in a text of {length} tokens"
    return None


def _counted_positions(network: Network) -> str | None:
    """Returns a reason for Llama 4, which scales queries by the cache's columns: right only for a lone row."""
    config = network.model.config.get_text_config()
    scaled = getattr(config, "floor_scale", None)
    if scaled is None or not getattr(config, "attn_temperature_tuning", False):
        return None
    if network.max_len <= int(scaled) - SLACK_COLUMNS - 1:
        return None
    return f"from token {scaled} on it scales queries by a position that it counts itself"


def _lengths(network: Network) -> list[int]:
    """Returns the lengths in tokens of the compared texts."""
    long_text = beyond(network.model.config, network.max_len)
    return [_TEXT_TOKENS] if long_text is None else [_TEXT_TOKENS, max(_TEXT_TOKENS, long_text[1])]


def _own_logits(network: Network, tokens: list[int]) -> torch.Tensor:
    """Returns the logits by the model's own forward, at the last positions  # [R, V]"""
    heads = getattr(network.model.config.get_text_config(), "num_attention_heads", None) or 1
    attention_name = "sdpa" if heads * len(tokens) ** 2 > _PLAIN_SCORES else "eager"
    before = network.model.config._attn_implementation
    if network.takes_attention:
        network.model.set_attn_implementation(attention_name)
    try:
        ids = torch.tensor([tokens], device=network.device)
        output = network.model(input_ids=ids, use_cache=False, **network.last_places(_DECODED))
    finally:
        if network.takes_attention:
            network.model.set_attn_implementation(before)
    logits: torch.Tensor = output.logits[0, -_DECODED:].float()
    return logits


def _cached_logits(network: Network, tokens: list[int], *, recorder: Recorder | None = None) -> torch.Tensor:
    """Returns the logits with the engine's cache: a prefilled text with its last tokens decoded  # [R, V]"""
    begun = len(tokens) - _DECODED
    # Beside a shorter text, whose padding and hidden columns must have no effect.
    prompts = [tokens[begun // 2 : begun], tokens[:begun]]
    _, prefilled = network.prefill(prompts)
    if not prefilled.keys:
        raise RolloutError("it stores no keys and values")
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
    last_logits = []
    for drawn in range(_DECODED):
        ids.fill_(tokens[begun + drawn])
        if steps is not None:
            logits = steps(2)
        else:
            logits = network.decode(ids, positions, cache.window(2, begun + drawn + 1), cache)
        last_logits.append(logits[1].clone())
        cache.advance()
        positions += 1
    return torch.stack(last_logits).float()


def _uncached_logits(network: Network, tokens: list[int], *, way: Way) -> torch.Tensor:
    """Returns the logits of requests computed separately, in turns with a shorter request  # [R, V]"""
    begun = len(tokens) - _DECODED
    starts = (begun // 2, 0)
    texts = [UncachedText(network, way) for _ in starts]
    last_logits = []
    for end in range(begun, len(tokens) + 1):
        for text, start in zip(texts, starts, strict=True):
            logits = text.logits(tokens[start:end])
        last_logits.append(logits[0])
    return torch.stack(last_logits[1:]).float()


def _unfit_error(network: Network, why: str, *, fix: str = "use another model") -> RolloutError:
    """Builds the error for a model that this engine cannot run."""
    kind = network.model.config.model_type
    name = type(network.model).__name__
    return RolloutError(f"the torch engine cannot run {kind} models ({name}): {why}", fix=fix)
