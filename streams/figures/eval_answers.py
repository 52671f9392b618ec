"""`EvalAnswers`: the texts that an evaluation keeps in an artifact, and which of many answers are kept."""

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
"""A character takes up to four bytes, and beside the texts there are figures."""
_ENDS: Final = 8
"""Of the answers that are kept, one of so many is among the best, and one among the worst."""


class EvalAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One answer to a held-out row, as text."""

    row: Index
    attempt: Index = 0
    """Its number among the answers to the row, from 0."""
    reward: Finite
    right: bool | None = None
    """None where the reward does not say so."""
    parts: dict[str, Finite] = {}
    """The named parts of the reward."""
    finish: str = ""
    """`stop`, `length` or `prompt_truncated`; empty of a rollout that failed."""
    tokens: Count = 0
    """The length of the answer."""
    prompt: str = ""
    text: str = ""
    """The answer, or its beginning."""
    chars: Count = 0
    """The length of the whole answer."""
    truth: str = ""
    category: str = ""
    error: str = ""
    """The reason why there is no answer."""


class EvalAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """The kept answers to a range of held-out rows, by row and attempt."""

    answers: tuple[EvalAnswer, ...]


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgpack_decoder(EvalAnswers)


def packed(answers: Sequence[EvalAnswer]) -> bytes:
    """The answers as bytes of an artifact, compressed: prompts and truths are the same for every version."""
    return zlib.compress(_encoder.encode(EvalAnswers(answers=tuple(answers))))


def unpacked(data: bytes) -> tuple[EvalAnswer, ...]:
    """The answers in an artifact. Raises LogCorruptError."""
    try:
        inflate = zlib.decompressobj()
        # Bounded, for a few bytes of an artifact that somebody else wrote may stand for more than there is memory.
        plain = inflate.decompress(data, _LARGEST_SIZE_BYTES)
        if not inflate.eof:
            raise zlib.error("it is cut, or larger than answers may be")
        return _decoder.decode(plain).answers
    except (zlib.error, *UNREADABLE) as error:
        what = f"an artifact of {len(data)} bytes holds no answers: {error}"
        raise LogCorruptError(what, fix="restore the artifacts that belong to this log") from error


def kept_places(rewards: Sequence[float], names: Sequence[str], most: int) -> list[int]:
    """The places of the answers that are kept, in order: all, or of more than `most` the best, the worst and a sample.

    The sample follows from the names alone, so that of two versions the same rows can be compared.
    """
    if len(rewards) <= most:
        return list(range(len(rewards)))
    drawn = sorted(range(len(names)), key=lambda place: xxhash.xxh3_128_digest(names[place].encode()))
    # Among equal rewards, those that are drawn first: a stable sort keeps them in that order.
    worst = sorted(drawn, key=lambda place: rewards[place])
    ends = max(1, most // _ENDS)
    # The worst answers first, for where there is room for few.
    chosen = dict.fromkeys([*worst[:ends], *sorted(drawn, key=lambda place: -rewards[place])[:ends], *drawn])
    return sorted(list(chosen)[:most])
