"""A trial at opening: does the trainer compute the log-probabilities that the model itself gives?

The trainer asks a model for its hidden states, several texts in a row, and applies the output layer itself. An
architecture that does more than that (a scale or a cap of its logits, another mask) would be trained on other numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from rftd.ops.errors import DataError
from rftd.workers.algorithms.aggregation import Aggregation
from rftd.workers.trainer.engine import TrainSample
from rftd.workers.trainer.engines.torch.forward import logprobs_of, tensor
from rftd.workers.trainer.engines.torch.packing import pack
from rftd.workers.trainer.engines.torch.token_trees import Ints

TEXT_TOKENS: Final = 320
TOLERANCE_NATS: Final = 1e-3
TOLERANCE_SHARE: Final = 1e-4
"""Of the log-probability: float32 keeps that much of it in a deep model."""
AGREEING: Final = 0.95
"""Of the tokens must agree. Not all: rounding may send a token to another expert, where two are chosen alike."""
_ROWS: Final = 64
"""Places whose logits are in float32 and normalised at once."""


def try_forward(model: Any, device: torch.device, *, where: Path, max_tokens: int, share: bool) -> None:
    """Compares a text, packed beside a shorter one that begins alike, with the model's own forward of each alone.

    `max_tokens` is the longest text that will be trained; `share`: equal prompts are computed once. The weights and
    every generator of random numbers stay as they are. Raises DataError, which names the model type, if they differ.
    """
    kind = model.config.model_type
    # An architecture may draw numbers even so.
    with torch.no_grad(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            found, expected = _both(model, device, max_tokens, share=share)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # an architecture may fail in its own way
            raise _unfit(kind, where, share, f"{type(error).__name__}: {error}") from error
    difference = (found - expected).abs()
    agree = (difference <= TOLERANCE_NATS + TOLERANCE_SHARE * expected.abs()).float().mean().item()
    if not agree >= AGREEING:
        raise _unfit(
            kind,
            where,
            share,
            f"its log-probabilities differ from the model's own by up to {difference.max().item():.2g} nats, "
            f"in {1 - agree:.0%} of {len(expected)} tokens",
        )


def _both(model: Any, device: torch.device, max_tokens: int, *, share: bool) -> tuple[Tensor, Tensor]:
    """Log-probabilities as the trainer computes them, and the model's own  # [N], [N]"""
    samples = [_expected(model, device, tokens, prompt) for tokens, prompt in _texts(model, max_tokens)]
    packed = pack(
        samples,
        budget_tokens=sum(2 * len(sample.tokens) for sample in samples),
        aggregation=Aggregation("token-mean"),
        hidden_size=model.config.hidden_size,
        share=share,
    )
    found = [logprobs_of(model, batch, device)[0] for batch in packed]
    expected = [tensor(batch.old_logprobs, device) for batch in packed]
    return torch.cat(found), torch.cat(expected)


def _texts(model: Any, max_tokens: int) -> list[tuple[Ints, int]]:
    """Tokens and length of the prompt of a long text, and of a short one that leaves it soon after the prompt.

    The prompt is long enough that computing it once is cheaper for any model, so that this is tried where it is done.
    """
    config = model.config.get_text_config()
    positions = getattr(config, "max_position_embeddings", None) or TEXT_TOKENS
    length = max(4, min(TEXT_TOKENS, max_tokens, positions))
    prompt = length // 2
    vocabulary = model.get_input_embeddings().num_embeddings
    long = np.random.default_rng(0).integers(0, vocabulary, length)
    short = long[: prompt + max(1, length // 8)].copy()
    alike = prompt + length // 32
    short[alike:] = (short[alike:] + 1) % vocabulary
    return [(long, prompt), (short, prompt)]


def _expected(model: Any, device: torch.device, tokens: Ints, prompt: int) -> TrainSample:
    """A response that carries the log-probabilities of the model's own forward."""
    ids = tensor(tokens, device)[None]
    with _plain_attention(model):
        logits = model(input_ids=ids, use_cache=False).logits[0, prompt - 1 : -1]  # [R, V]
    chosen = [
        torch.log_softmax(some.float(), -1).gather(1, targets[:, None])[:, 0]
        for some, targets in zip(torch.split(logits, _ROWS), torch.split(ids[0, prompt:], _ROWS), strict=True)
    ]
    return TrainSample(
        tokens=tokens.astype(np.uint32),
        prompt_tokens=prompt,
        loss_mask=np.ones(len(tokens) - prompt, np.uint8),
        logprobs=torch.cat(chosen).cpu().numpy(),
    )


@contextmanager
def _plain_attention(model: Any) -> Iterator[None]:
    """Runs the model with the attention that its own file spells out: others leave out what they do not know."""
    config = model.config
    if config._attn_implementation == "eager":  # some have no other, and parts that name none
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


def _unfit(kind: str, where: Path, share: bool, why: str) -> DataError:
    fix = "use another model or another trainer engine"
    if share:
        fix = f"set trainer.engine_args.prefix_sharing to never, or {fix}"
    return DataError(f"the torch engine cannot train {kind} models: {why}", where=str(where), fix=fix)
