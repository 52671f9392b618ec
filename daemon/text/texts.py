"""`Texts`: token ids as text for the daemon, decoded in a separate process under bounds of time and memory."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from rftd.daemon.text import decoding_program
from rftd.daemon.text.decoding_program import MEMORY
from rftd.daemon.text.row_reader import RowReader
from rftd.ops import limits
from rftd.ops.clock import Clock, SystemClock
from rftd.ops.errors import DataError
from rftd.workers.datasets.byte_tokenizer import ByteTokenizer
from rftd.workers.workflows.rewards.line_process import LineProcess, ProcessEnded

_PROGRAM: Final = decoding_program.__name__
_ENVIRONMENT: Final = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
_REFUSALS: Final = 256
"""Maximum number of remembered tokenizers with an ended process."""


class TokenizerFile(NamedTuple):
    """A tokenizer.json: the copy of a job with its sha256, or the file of a model's folder."""

    path: Path
    sha256: str = ""


class WantedText(NamedTuple):
    """Ids to decode, as 32-bit numbers, with special tokens or without, as a whole or token by token."""

    ids: bytes
    special: bool = True
    pieces: bool = False


class DecodedText(NamedTuple):
    """The text of some ids, cut at the requested length, with the length of the whole in characters."""

    text: str
    chars: int
    pieces: tuple[str, ...] = ()
    """The text of each id; empty unless requested."""


class DecodedTexts(NamedTuple):
    """The texts of a request, with a note about ids outside of the tokenizer."""

    texts: dict[WantedText, DecodedText]
    note: str = ""


class Texts:
    """Decodes ids, one request at a time."""

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        timeout_s: float = limits.TEXT_S,
        memory_bytes: int = limits.TEXT_MEMORY_SIZE_BYTES,
    ) -> None:
        """Kills the decoding process after `timeout_s` seconds without an answer; `memory_bytes` is its limit."""
        self._clock = clock or SystemClock()
        self._process = LineProcess(_PROGRAM, timeout_s=timeout_s)
        self._process.environ = {**self._process.environ, **_ENVIRONMENT, MEMORY: str(memory_bytes)}
        self._one = asyncio.Lock()
        self._refused: dict[TokenizerFile, tuple[float, str]] = {}
        """Tokenizers with an ended process, the time of the next attempt, and the reason."""
        self.rows = RowReader()

    async def decode(
        self, file: TokenizerFile | None, requests: Sequence[WantedText], *, chars: int = limits.TEXT_CHARS
    ) -> DecodedTexts:
        """Returns the text of each request, by a tokenizer's file or, without one, as bytes. Raises DataError."""
        different = list(dict.fromkeys(requests))
        if file is None:
            return DecodedTexts({request: _of_bytes(request, chars) for request in different})
        if not different:
            return DecodedTexts({})
        answer = await self._asked(file, different, chars)
        texts = [
            DecodedText(text.get("text", ""), text.get("chars", 0), tuple(text.get("pieces", ())))
            for text in answer["texts"]
        ]
        note = ""
        if answer["unknown_count"]:
            examples = ", ".join(map(str, answer["unknown"]))
            note = f"{answer['unknown_count']} token ids are not in the tokenizer, which is another model's: {examples}"
        return DecodedTexts(dict(zip(different, texts, strict=True)), note)

    async def _asked(self, file: TokenizerFile, requests: Sequence[WantedText], chars: int) -> dict[str, Any]:
        request = {
            "path": str(file.path),
            "sha256": file.sha256,
            "chars": chars,
            "texts": [
                {"ids": base64.b64encode(text.ids).decode(), "special": text.special, "pieces": text.pieces}
                for text in requests
            ],
        }
        async with self._one:
            until_s, reason = self._refused.get(file, (0.0, ""))
            if self._clock.monotonic_s() < until_s:
                raise DataError(reason, where=str(file.path))
            try:
                answer: dict[str, Any] = await asyncio.to_thread(self._process.ask, request)
            except ProcessEnded as error:
                raise self._refusal(file, error) from error
        if "error" in answer:
            raise DataError(answer["error"], where=str(file.path))
        return answer

    def _refusal(self, file: TokenizerFile, error: ProcessEnded) -> DataError:
        """Returns the error of a tokenizer with an ended process, and remembers the tokenizer for a while."""
        while len(self._refused) >= _REFUSALS:
            del self._refused[next(iter(self._refused))]
        reason = f"the tokenizer needs too much time or memory: {error}"
        self._refused[file] = self._clock.monotonic_s() + limits.TEXT_REFUSAL_S, reason
        return DataError(reason, where=str(file.path))


def _of_bytes(request: WantedText, chars: int) -> DecodedText:
    ids = memoryview(request.ids).cast("I").tolist()
    tokenizer = ByteTokenizer()
    if request.pieces:
        return DecodedText("", 0, tuple(tokenizer.decode([token]) for token in ids))
    text = tokenizer.decode(ids)
    return DecodedText(text[:chars], len(text))
