"""`RolloutFile`: rollouts as a Parquet file, one row each."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from rftd.daemon.http.client.rollouts import TextRollout
from rftd.ops.errors import OutputError
from rftd.ops.extras import DATA, check_extra

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH: Final = 1000
"""Number of rows collected before they are written together."""


class RolloutFile:
    """A new Parquet file of rollouts; absent until complete."""

    def __init__(self, path: str) -> None:
        """Raises NotInstalledError without pyarrow, and OutputError for an existing file."""
        check_extra(DATA, "rftd experiences export")
        self._path = Path(path)
        """Final path of the file, absent until the file is complete."""
        if self._path.exists():
            raise OutputError("exists already", where=path, fix="name a new file")
        self._unfinished = self._path.with_name(f"{self._path.name}.unfinished")
        """Path of the file until it is complete."""
        self._rows: list[dict[str, Any]] = []
        """Rows added and not written to the file yet."""
        self._writer: Any = None
        """Parquet writer of pyarrow; None before the block begins."""
        self.count = 0
        """Number of rollouts added to the file."""
        self.notes: Counter[str] = Counter()
        """Number of rollouts without text, by reason."""

    def __enter__(self) -> Self:
        import pyarrow.parquet as pq

        try:
            self._writer = pq.ParquetWriter(self._unfinished, schema_of_rollouts(), compression="zstd")
        except OSError as error:
            reason = error.strerror or str(error)
            raise OutputError(f"cannot be written: {reason}", where=str(self._path), fix="name another file") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._write_batch()
        self._writer.close()
        if kind is None:
            os.replace(self._unfinished, self._path)
        else:
            self._unfinished.unlink(missing_ok=True)

    def add(self, rollout: TextRollout) -> None:
        """Writes a rollout, at the latest at the end of the block."""
        self._rows.append(row_of(rollout))
        self.count += 1
        if rollout.answer is None:
            self.notes[rollout.notes[0] if rollout.notes else "no tokenizer"] += 1
        if len(self._rows) >= _BATCH:
            self._write_batch()

    def _write_batch(self) -> None:
        """Writes the rows added since the last call."""
        import pyarrow as pa

        if self._rows:
            self._writer.write_table(pa.Table.from_pylist(self._rows, schema=schema_of_rollouts()))
        self._rows = []


def schema_of_rollouts() -> pa.Schema:
    """Returns the columns of the file with their types."""
    import pyarrow as pa

    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    span = pa.struct([("version", pa.int64()), ("start", pa.int64()), ("end", pa.int64())])
    part = pa.struct([("by", pa.string()), ("text", pa.string()), ("start", pa.int64()), ("end", pa.int64())])
    texts = ("prompt", "raw_prompt", "response", "truth", "experience", "group", "state", "finish")
    numbers = ("rollout", "stage", "row", "epoch", "step", "prompt_tokens", "response_tokens")
    versions = ("oldest_version", "newest_version")
    return pa.schema(
        [
            *((name, pa.string()) for name in texts),
            *((name, pa.int64()) for name in (*numbers, *versions)),
            ("reward", pa.float64()),
            ("parts_of_reward", pa.map_(pa.string(), pa.float64())),
            ("messages", pa.list_(message)),
            ("parts", pa.list_(part)),
            ("versions", pa.list_(span)),
            ("notes", pa.list_(pa.string())),
        ]
    )


def row_of(rollout: TextRollout) -> dict[str, Any]:
    """Returns the row of a rollout."""
    view = rollout.view
    experience = view.rollout.experience
    turns = view.rollout.turns
    return {
        "prompt": rollout.prompt,
        "raw_prompt": turns[0].prompt if turns else None,
        "response": rollout.answer,
        "truth": rollout.truth,
        "experience": experience.id,
        "group": experience.group,
        "state": experience.state,
        "finish": experience.finish,
        "rollout": experience.rollout,
        "stage": experience.stage,
        "row": None if view.task is None else view.task.row,
        "epoch": None if view.task is None else view.task.epoch,
        "step": experience.step,
        "prompt_tokens": experience.prompt_tokens,
        "response_tokens": experience.response_tokens,
        "oldest_version": experience.oldest_version,
        "newest_version": experience.newest_version,
        "reward": experience.reward,
        "parts_of_reward": [(name, part) for name, part in experience.metrics.items() if part is not None],
        "messages": [{"role": message.role, "content": message.content} for message in view.messages],
        "parts": [
            {"by": part.by, "text": part.text, "start": part.start, "end": part.end}
            for turn in turns
            for part in turn.parts
        ],
        "versions": [{"version": span.version, "start": span.start, "end": span.end} for span in view.rollout.spans],
        "notes": rollout.notes,
    }
