"""A trial at opening: the trainer's log-probabilities are compared with those of the model's own forward pass.

The trainer runs a model's decoder on several texts in a row, and applies the output layer itself. An architecture that
does more than that (scales or caps its logits, uses another mask) would be trained on wrong numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from rftd.ops.errors import DataError
from rftd.workers.devices.pinned_transfer import to_device
from rftd.workers.engines.torch.trainer.forward import logprobs_of
from rftd.workers.engines.torch.trainer.packing import pack
from rftd.workers.learning.engine import TrainSample
from rftd.workers.learning.losses.aggregation import Aggregation
from rftd.workers.learning.stage.micro_batch import Ints
from rftd.workers.models.text_lengths import beyond, moving_rotation

TEXT_TOKENS: Final = 320
"""Tokens of the long text, unless the model's limit is lower."""
TAIL_TOKENS: Final = 160
"""Maximum number of compared tokens of a text longer than the model's last attention window, chunk or original
length.
"""
TOLERANCE_NATS: Final = 1e-3
"""Allowed absolute difference of a token's log-probability."""
TOLERANCE_SHARE: Final = 1e-4
"""Allowed relative difference of a token's log-probability: the precision of float32 in a deep model."""
AGREEING: Final = 0.95
"""Minimum share of tokens within the tolerance."""
GROSS_NATS: Final = 0.05
"""Maximum difference of any token; models with experts are exempt, because rounding may send a token to another
expert.
"""
_PLAIN_SCORES: Final = 1 << 28
"""Maximum attention scores of one layer in memory at once, 1 GiB in float32; longer texts keep the attention in use."""
_ROWS: Final = 64
"""Positions whose logits are converted to float32 and normalised at once."""


def try_forward(model: Any, device: torch.device, *, where: Path, max_tokens: int, share: bool) -> None:
    """Raises DataError, naming the model type, if log-probabilities of packed texts differ from the model's own forward
    pass.

    `max_tokens` is the longest text to be trained: one compared text extends beyond the last attention window, chunk or
    original length below it. `share`: equal prompts are computed once. Weights and random generators are unchanged.
    """
    kind = model.config.model_type
    if moving := moving_rotation(model.config, max_tokens):
        why, limit = moving
        raise _unfit_error(kind, where, why, f"set model.max_model_len to at most {limit}, or use another model")
    fix = "use another model"
    if share:
        fix = f"set trainer.engine_args.prefix_sharing to never, or {fix}"
    for prompt, length in _lengths(model, max_tokens):
        # An architecture may draw numbers even so.
        with torch.no_grad(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            try:
                computed, expected = _both_logprobs(model, device, _texts(model, prompt, length), share=share)
            # No fault of the architecture: the caller says what to do about memory.
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # an architecture may fail in its own way
                raise _unfit_error(kind, where, f"{type(error).__name__}: {error}", fix) from error
        if why := _difference(computed, expected, experts=_has_experts(model)):
            raise _unfit_error(kind, where, f"{why} of a text of {length}", fix)


def _lengths(model: Any, max_tokens: int) -> list[tuple[int, int]]:
    """Returns the number of prompt tokens and of all tokens of each compared text.

    The prompt is long enough that computing it once is cheaper for any model, so that this is tried where it is done.
    """
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None) or max_tokens
    longest = min(max_tokens, positions)
    length = max(4, min(TEXT_TOKENS, longest))
    tried = [(length // 2, length)]
    if found := beyond(model.config, longest):
        last, length = found
        tried.append((max(last, length - TAIL_TOKENS), length))
    return tried


def _difference(computed: Tensor, expected: Tensor, *, experts: bool) -> str:
    """Returns the difference of log-probabilities in words; empty for agreement  # [N], [N]"""
    difference = (computed - expected).abs()
    near = difference <= TOLERANCE_NATS + TOLERANCE_SHARE * expected.abs()
    agree = near.float().mean().item()
    most = difference.max().item()
    if agree >= AGREEING and (experts or most <= GROSS_NATS):
        return ""
    return (
        f"its log-probabilities differ from the model's own by up to {most:.2g} nats, "
        f"in {1 - agree:.0%} of {len(expected)} tokens"
    )


def _has_experts(model: Any) -> bool:
    """True for a model with a mixture of experts."""
    return "expert" in str(model.config.get_text_config().to_dict())


def _both_logprobs(
    model: Any, device: torch.device, texts: list[tuple[Ints, int]], *, share: bool
) -> tuple[Tensor, Tensor]:
    """Returns the trainer's log-probabilities and the model's own  # [N], [N]"""
    samples = [_own_response(model, device, tokens, prompt) for tokens, prompt in texts]
    packed = pack(
        samples,
        budget_tokens=sum(2 * len(sample.tokens) for sample in samples),
        aggregation=Aggregation("token-mean"),
        hidden_size=model.config.hidden_size,
        share=share,
    )
    computed = [logprobs_of(model, batch, device)[0] for batch in packed]
    expected = [to_device(batch.old_logprobs, device) for batch in packed]
    return torch.cat(computed), torch.cat(expected)


def _texts(model: Any, prompt: int, length: int) -> list[tuple[Ints, int]]:
    """Returns the tokens and the prompt length of a long text, and of a short text with a common beginning."""
    vocabulary = model.get_input_embeddings().num_embeddings
    # A fixed seed: the trial must give one verdict for one model, in every process.
    long = np.random.default_rng(0).integers(0, vocabulary, length)
    short = long[: prompt + max(1, (length - prompt) // 4)].copy()
    alike = prompt + (length - prompt) // 16
    # The short text leaves the long one a little after the prompt, so that a branch within a response is tried too.
    short[alike:] = (short[alike:] + 1) % vocabulary
    return [(long, prompt), (short, prompt)]


def _own_response(model: Any, device: torch.device, tokens: Ints, prompt: int) -> TrainSample:
    """Returns a response with the log-probabilities of the model's own forward pass."""
    ids = to_device(tokens, device)[None]
    tail = (
        # Logits of all places of a long text are several GiB.
        {"logits_to_keep": len(tokens) - prompt + 1} if "logits_to_keep" in signature(model.forward).parameters else {}
    )
    with _plain_attention(model, len(tokens)):
        logits = model(input_ids=ids, use_cache=False, **tail).logits[0, prompt - len(tokens) - 1 : -1]  # [R, V]
    chosen = [
        torch.log_softmax(rows.float(), -1).gather(1, targets[:, None])[:, 0]
        for rows, targets in zip(torch.split(logits, _ROWS), torch.split(ids[0, prompt:], _ROWS), strict=True)
    ]
    return TrainSample(
        tokens=tokens.astype(np.uint32),
        prompt_tokens=prompt,
        loss_mask=np.ones(len(tokens) - prompt, np.uint8),
        logprobs=torch.cat(chosen).cpu().numpy(),
    )


@contextmanager
def _plain_attention(model: Any, tokens: int) -> Iterator[None]:
    """Runs the model with the attention of its own file, complete for every architecture."""
    config = model.config
    heads = getattr(config.get_text_config(), "num_attention_heads", None) or 1
    too_long = heads * tokens * tokens > _PLAIN_SCORES
    if too_long or config._attn_implementation == "eager":  # some have no other, and parts that name none
        yield
        return
    parts = {name: getattr(config, name, None) for name in config.sub_configs}
    before = {name: part._attn_implementation for name, part in parts.items() if part is not None}
    before[""] = config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _unfit_error(kind: str, where: Path, why: str, fix: str) -> DataError:
    """Builds the error for a model that this engine cannot train."""
    return DataError(f"the torch engine cannot train {kind} models: {why}", where=str(where), fix=fix)
