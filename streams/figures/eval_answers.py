"""`EvalAnswers`: texts of an evaluation's answers, stored as an artifact, and the choice of answers to store."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

import msgspec
import xxhash

from rftd.ops import limits
from rftd.ops.decoding import UNREADABLE, msgpack_decoder
from rftd.ops.errors import LogCorruptError
from rftd.streams.log.bounds import Count, Finite, Index

_LARGEST_SIZE_BYTES: Final = 8 * limits.EVAL_ANSWERS_CHARS
"""Maximum unpacked size: a character takes up to four bytes, and there are figures beside the texts."""
_ENDS: Final = 8
"""One in this many stored answers is among the best, and one among the worst."""


class EvalAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One answer to a held-out row, as text with its score."""

    row: Index
    attempt: Index = 0
    """Index among the answers to its row, from 0."""
    reward: Finite
    right: bool | None = None
    """None if the reward does not report correctness."""
    parts: dict[str, Finite] = {}
    """The named parts of the reward."""
    finish: str = ""
    """`stop`, `length` or `prompt_truncated`; empty for a failed rollout."""
    tokens: Count = 0
    """The length of the answer in tokens."""
    prompt: str = ""
    text: str = ""
    """The answer, or its beginning."""
    chars: Count = 0
    """The length of the whole answer in characters."""
    truth: str = ""
    extracted: str | None = None
    """The answer read by the reward, or its beginning; None without a note."""
    category: str = ""
    error: str = ""
    """Why there is no answer; empty if there is one."""


class EvalAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """The stored answers to a range of held-out rows, by row and attempt."""

    answers: tuple[EvalAnswer, ...]


_encoder: Final = msgspec.msgpack.Encoder()
"""Encoder of the answers of an evaluation."""
_decoder: Final = msgpack_decoder(EvalAnswers)
"""Decoder of the answers of an evaluation."""


def packed(answers: Sequence[EvalAnswer]) -> bytes:
    """Packs answers as bytes of an artifact, compressed: prompts and truths are equal for every version."""
    return zlib.compress(_encoder.encode(EvalAnswers(answers=tuple(answers))))


def unpacked(data: bytes) -> tuple[EvalAnswer, ...]:
    """Unpacks the answers of an artifact. Raises LogCorruptError."""
    try:
        inflate = zlib.decompressobj()
        # Bounded: a few bytes of an artifact of another writer may expand beyond the available memory.
        plain = inflate.decompress(data, _LARGEST_SIZE_BYTES)
        if not inflate.eof:
            raise zlib.error("it is cut, or larger than answers may be")
        return _decoder.decode(plain).answers
    except (zlib.error, *UNREADABLE) as error:
        fault = f"an artifact of {len(data)} bytes holds no answers: {error}"
        raise LogCorruptError(fault, fix="restore the artifacts that belong to this log") from error


def kept_places(rewards: Sequence[float], names: Sequence[str], most: int) -> list[int]:
    """Returns the indices of the answers to store, ascending: all, or, of more than `most`, the best, the worst and a
    sample.

    The sample depends on the names alone, making rows comparable between two versions.
    """
    if len(rewards) <= most:
        return list(range(len(rewards)))
    drawn = sorted(range(len(names)), key=lambda place: xxhash.xxh3_128_digest(names[place].encode()))
    # Among equal rewards, the ones drawn first: a stable sort keeps their order.
    worst = sorted(drawn, key=lambda place: rewards[place])
    ends = max(1, most // _ENDS)
    # The worst answers first, for small limits.
    chosen = dict.fromkeys([*worst[:ends], *sorted(drawn, key=lambda place: -rewards[place])[:ends], *drawn])
    return sorted(list(chosen)[:most])
