"""Lengths of texts from which on a model computes differently, read from the model's configuration.

Attention windows and chunks end there, and some rotary embeddings turn by other angles for every token of the text. A
trial with a shorter text cannot show the difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

_LENGTHS: Final = (
    "sliding_window",
    "attention_window_size",
    "window_size",
    "attention_chunk_size",
    "floor_scale",
    "original_max_position_embeddings",
)
"""Settings with a length beyond which a model's attention or positions work differently."""
_MARGIN_TOKENS: Final = 8
"""Minimum number of a test text's tokens beyond the turning point."""
_MARGIN_SHARE: Final = 4
"""A text for showing a difference continues for at least a fourth of the length before."""


def turning_points(config: Any) -> list[int]:
    """Returns the text lengths, in tokens, beyond which a model's attention or positions work differently, ascending:
    windows, chunks, original lengths.
    """
    text = config.get_text_config()
    # Any of these names may be in any architecture; an irrelevant length costs a longer trial, nothing else.
    lengths = {getattr(text, name, None) for name in _LENGTHS}
    for rotation in _rotations(text):
        lengths.add(rotation.get("original_max_position_embeddings"))
        if "dynamic" in str(rotation.get("rope_type")):
            lengths.add(text.max_position_embeddings)
    return sorted(int(length) for length in lengths if isinstance(length, int | float) and length > 0)


def beyond(config: Any, max_tokens: int) -> tuple[int, int] | None:
    """Returns the largest turning point below `max_tokens`, and the length of a test text extending beyond it; None
    without one.
    """
    # Only the last one: a text beyond it is beyond all before.
    below = [length for length in turning_points(config) if length < max_tokens]
    if not below:
        return None
    return below[-1], min(max_tokens, below[-1] + max(_MARGIN_TOKENS, below[-1] // _MARGIN_SHARE))


def moving_rotation(config: Any, max_tokens: int) -> tuple[str, int] | None:
    """Returns why a token's log-probability would depend on other texts of a batch, for texts of up to `max_tokens`,
    and the longest safe length; None if it does not.

    The rotary embeddings `longrope` (arXiv:2402.13753) and `dynamic` (NTK) rotate every token of a batch by angles that
    depend on the longest text.
    """
    text = config.get_text_config()
    for rotation in _rotations(text):
        kind = str(rotation.get("rope_type"))
        limit = None
        if kind == "longrope":
            limit = rotation.get("original_max_position_embeddings")
        elif "dynamic" in kind:
            limit = text.max_position_embeddings
        if limit is not None and limit < max_tokens:
            reason = (
                f"its rotary embedding {kind!r} turns all tokens otherwise once a text, or one beside it, is longer "
                f"than {limit} tokens, and texts of up to {max_tokens} are allowed"
            )
            return reason, int(limit)
    return None


def _rotations(text: Any) -> Iterator[Mapping[str, Any]]:
    """Yields the settings of each rotary embedding: one for all layers, or one for each kind of layer."""
    stated = getattr(text, "rope_parameters", None)
    if not isinstance(stated, Mapping):
        return
    if "rope_type" in stated:
        yield stated
    # Models with two kinds of layers (Gemma 3) have a rotation for each, under the name of the kind.
    yield from (rotation for rotation in stated.values() if isinstance(rotation, Mapping) and "rope_type" in rotation)
