"""`Texts`: token ids as text for the daemon, decoded in a separate process under bounds of time and memory."""

from __future__ import annotations

import asyncio
import base64
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

from rftd.daemon.text import decoding_program
from rftd.daemon.text.decoding_program import MEMORY
from rftd.ops import limits
from rftd.ops.clock import Clock, SystemClock
from rftd.ops.errors import DataError
from rftd.streams.spec.spec import StageSpec, TasksetSpec
from rftd.streams.spec.stage_tasks import task_place, tasksets_of
from rftd.workers.datasets.byte_tokenizer import ByteTokenizer
from rftd.workers.datasets.files import taskset_files
from rftd.workers.datasets.task import Task
from rftd.workers.datasets.taskset import Taskset
from rftd.workers.workflows.rewards.line_process import LineProcess, ProcessEnded

_WAIT_S: Final = 5.0
"""Maximum seconds to wait for rows: a large file is read whole at its opening."""


class RowReader:
    """Tasksets open for single rows; the taskset read longest ago is closed first."""

    def __init__(self) -> None:
        # A thread outside of the loop's pool: a slow file must not keep the daemon's other work waiting.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="row-reader")
        """The thread reading rows."""
        self._opened: OrderedDict[str, Taskset] = OrderedDict()
        """Open tasksets, the one read last at the end."""

    async def task(self, stage: StageSpec, row: int, epoch: int) -> Task | None:
        """Returns the task of a row counted over all tasksets of the stage; None for a queue, and for tasks without a
        file. Raises DataError.
        """
        if not tasksets_of(stage):
            return None
        task_row = task_place(stage, row)
        spec = tasksets_of(stage)[task_row.taskset]
        if spec.queue or not spec.path:
            return None
        reading = asyncio.get_running_loop().run_in_executor(self._thread, self._read_task, spec, task_row.row, epoch)
        reading.add_done_callback(_noticed)
        try:
            # Shielded: the opening continues, so that a later request finds the rows.
            return await asyncio.wait_for(asyncio.shield(reading), _WAIT_S)
        except TimeoutError:
            raise DataError(f"{spec.path} is still being read", fix="ask again in a moment") from None

    def _read_task(self, spec: TasksetSpec, row: int, epoch: int) -> Task:
        """Reads a task. Raises DataError for a taskset changed since the acceptance."""
        taskset = self._open_taskset(spec)
        if spec.digest and taskset.digest != spec.digest:
            raise DataError(f"{spec.path} has changed since the experiment was accepted", where=spec.path)
        return taskset.task(row, epoch)

    def _open_taskset(self, spec: TasksetSpec) -> Taskset:
        """Returns the open taskset, opened anew if its files changed."""
        key = repr(spec)
        opened = self._opened.pop(key, None)
        if opened is not None and opened.touched:
            opened.close()
            opened = None
        if opened is None:
            try:
                taskset_files(spec)
            except DataError:
                raise DataError(f"{spec.path} does not exist here", where=spec.path) from None
            opened = Taskset.open(spec)
        self._opened[key] = opened
        while len(self._opened) > limits.TEXT_TASKSETS:
            self._opened.popitem(last=False)[1].close()
        return opened


def _noticed(reading: asyncio.Future[Task]) -> None:
    """Retrieves the error of an abandoned reading, so that asyncio reports no error without a reader."""
    if not reading.cancelled():
        reading.exception()


_PROGRAM: Final = decoding_program.__name__
"""Module of the decoding process."""
_ENVIRONMENT: Final = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
"""Variables of the decoding process: one thread."""
_REFUSALS: Final = 256
"""Maximum number of remembered tokenizers with an ended process."""


class TokenizerFile(NamedTuple):
    """A tokenizer.json: the copy of a job with its sha256, or the file of a model's folder."""

    path: Path
    """Path of the tokenizer.json."""
    sha256: str = ""
    """Expected sha256 of the file in hex; empty: not checked."""


class WantedText(NamedTuple):
    """Ids to decode, as 32-bit numbers, with special tokens or without, as a whole or token by token."""

    ids: bytes
    """Token ids to decode, four bytes each."""
    special: bool = True
    """True if special tokens belong to the text."""
    pieces: bool = False
    """True if the text added by each id behind the one before is wanted, in place of the whole text."""


class DecodedText(NamedTuple):
    """The text of some ids, cut at the requested length, with the length of the whole in characters."""

    text: str
    """Text of the ids, cut at the requested length."""
    chars: int
    """Length of the whole text in characters."""
    pieces: tuple[str, ...] = ()
    """The text of each id; empty unless requested."""


class DecodedTexts(NamedTuple):
    """The texts of a request, with a note about ids outside of the tokenizer."""

    texts: dict[WantedText, DecodedText]
    """Decoded text of each request."""
    note: str = ""
    """Note about ids outside of the tokenizer; empty without one."""


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
        """Clock for the memory of unusable tokenizers."""
        self._process = LineProcess(_PROGRAM, timeout_s=timeout_s)
        """Process that decodes ids, restarted after its end."""
        self._process.environ = {**self._process.environ, **_ENVIRONMENT, MEMORY: str(memory_bytes)}
        self._one = asyncio.Lock()
        """Lock held by the request being decoded."""
        self._refused: dict[TokenizerFile, tuple[float, str]] = {}
        """Tokenizers with an ended process, the time of the next attempt, and the reason."""
        self.rows = RowReader()
        """Reader of single tasks from the datasets."""

    async def decode(
        self, file: TokenizerFile | None, requests: Sequence[WantedText], *, chars: int = limits.TEXT_CHARS
    ) -> DecodedTexts:
        """Returns the text of each request, by a tokenizer's file or, without one, as bytes. Raises DataError."""
        different = list(dict.fromkeys(requests))
        if file is None:
            return DecodedTexts({request: _decode_bytes(request, chars) for request in different})
        if not different:
            return DecodedTexts({})
        answer = await self._ask_process(file, different, chars)
        texts = [
            DecodedText(text.get("text", ""), text.get("chars", 0), tuple(text.get("pieces", ())))
            for text in answer["texts"]
        ]
        note = ""
        if answer["unknown_count"]:
            examples = ", ".join(map(str, answer["unknown"]))
            note = f"{answer['unknown_count']} token ids are not in the tokenizer, which is another model's: {examples}"
        return DecodedTexts(dict(zip(different, texts, strict=True)), note)

    async def _ask_process(self, file: TokenizerFile, requests: Sequence[WantedText], chars: int) -> dict[str, Any]:
        """Returns the answer of the decoding process. Raises DataError for a refused tokenizer, an ended process, and
        an error in the answer.
        """
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


def _decode_bytes(request: WantedText, chars: int) -> DecodedText:
    """Returns the text of ids that are bytes."""
    ids = memoryview(request.ids).cast("I").tolist()
    tokenizer = ByteTokenizer()
    if request.pieces:
        return DecodedText("", 0, tuple(tokenizer.decode([token]) for token in ids))
    text = tokenizer.decode(ids)
    return DecodedText(text[:chars], len(text))
