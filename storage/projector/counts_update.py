# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""`CountsUpdate`: changes of the counts of experiments and stages, written in the transaction of the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from typing import Any, Final, NamedTuple

from rftd.storage.projector.upserts import Values
from rftd.storage.queries.stage_counts import (
    DROPPED,
    EMPTY,
    FAILED,
    FAILED_ROLLOUTS,
    LATE,
    MEMBERS,
    OPEN,
    REASON_CHARACTERS,
    TRAINED,
    WAITING,
    length_key,
)

_COUNT_IN_FILE: Final = """INSERT INTO counts (experiment, kind, reason, count) VALUES (?, ?, ?, ?)
ON CONFLICT (experiment, kind, reason) DO UPDATE SET count = counts.count + excluded.count"""
"""Statement adding to a count, on SQLite."""
_COUNT_ON_SERVER: Final = """INSERT INTO counts (experiment, kind, reason, count)
SELECT * FROM unnest($1::bytea[], $2::text[], $3::text[], $4::bigint[])
ON CONFLICT (experiment, kind, reason) DO UPDATE SET count = counts.count + excluded.count"""
"""Statement adding to counts, on Postgres."""
_EMPTY_IN_FILE: Final = "DELETE FROM counts WHERE experiment = ? AND kind = ? AND reason = ? AND count = 0"
"""Statement deleting a count of 0, on SQLite."""
_EMPTY_ON_SERVER: Final = """DELETE FROM counts c USING unnest($1::bytea[], $2::text[], $3::text[])
    AS n(experiment, kind, reason)
WHERE c.experiment = n.experiment AND c.kind = n.kind AND c.reason = n.reason AND c.count = 0"""
"""Statement deleting counts of 0, on Postgres."""
_STAGE_COLUMNS: Final = "experiment, stage, kind, reason, length, count, prompt_tokens, response_tokens"
"""Columns of `stage_counts`."""
_STAGE_SUMS: Final = """ON CONFLICT (experiment, stage, kind, reason, length) DO UPDATE SET
    count = stage_counts.count + excluded.count,
    prompt_tokens = stage_counts.prompt_tokens + excluded.prompt_tokens,
    response_tokens = stage_counts.response_tokens + excluded.response_tokens"""
"""Clause adding to an existing row of `stage_counts`."""
_STAGE_IN_FILE: Final = f"INSERT INTO stage_counts ({_STAGE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?) {_STAGE_SUMS}"
"""Statement adding to a stage's count, on SQLite."""
_STAGE_ON_SERVER: Final = f"""INSERT INTO stage_counts ({_STAGE_COLUMNS})
SELECT * FROM unnest($1::bytea[], $2::bigint[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[],
    $8::bigint[]) {_STAGE_SUMS}"""
"""Statement adding to stages' counts, on Postgres."""
_NO_STAGE_IN_FILE: Final = """DELETE FROM stage_counts
WHERE experiment = ? AND stage = ? AND kind = ? AND reason = ? AND length = ? AND count = 0"""
"""Statement deleting a stage's count of 0, on SQLite."""
_NO_STAGE_ON_SERVER: Final = """DELETE FROM stage_counts c
USING unnest($1::bytea[], $2::bigint[], $3::text[], $4::text[], $5::bigint[])
    AS n(experiment, stage, kind, reason, length)
WHERE c.experiment = n.experiment AND c.stage = n.stage AND c.kind = n.kind AND c.reason = n.reason
    AND c.length = n.length AND c.count = 0"""
"""Statement deleting stages' counts of 0, on Postgres."""


class Write(NamedTuple):
    """A statement run for each row, as text for SQLite and for Postgres (arrays of columns)."""

    in_file: str
    """Text for SQLite, run for each row."""
    on_server: str
    """Text for Postgres, run once with an array for each column."""
    rows: Sequence[Values]
    """Parameters of each row."""


class CountsUpdate:
    """The sum of the changes of one transaction."""

    def __init__(self) -> None:
        self._experiments: Counter[tuple[bytes, str, str]] = Counter()
        """Changes by experiment, kind and reason."""
        self._stages: dict[tuple[bytes, int, str, str, int], list[int]] = {}
        """Changes of number, prompt tokens and response tokens by experiment, stage, kind, reason and length."""

    def add_experience(self, run: tuple[Any, ...], state_columns: Sequence[Any], sign: int) -> None:
        """Adds an experience, or takes it away.

        `run` has experiment, stage, prompt tokens and response tokens; `state_columns` begins with name, reason and use
        of a retirement, and ends with the number of uses.
        """
        experiment, stage, prompt_tokens, response_tokens = run
        state, reason, used = state_columns[:3]
        if state is None or experiment is None:
            return
        key = bytes(experiment)
        short = "" if reason is None else reason[:REASON_CHARACTERS]
        self._experiments[key, state, short] += sign
        if used:
            self._experiments[key, "retired_used", short] += sign
        length = 0
        if state_columns[-1]:
            kind = TRAINED
            short = ""
            length = length_key(response_tokens)
        elif state in _UNDECIDED:
            kind = state
            short = ""
        else:
            kind = LATE if state == LATE else DROPPED
            short = short or state
            length = length_key(response_tokens)
        self._add(key, stage, kind, short, length, sign, sign * prompt_tokens, sign * response_tokens)

    def add_groups(self, rows: Iterable[tuple[Any, ...]], sign: int) -> None:
        """Adds closed groups, as (experiment, stage, members, failed, code)."""
        for experiment, stage, members, failed, code in rows:
            if experiment is None:
                continue
            key, short = bytes(experiment), (code or "")[:REASON_CHARACTERS]
            for kind, number in (("groups", 1), (MEMBERS, members or 0), (FAILED, failed or 0)):
                self._experiments[key, kind, ""] += sign * number
            if code:
                self._experiments[key, "code", short] += sign
            if stage is None:
                continue
            self._add(key, stage, MEMBERS, "", 0, sign * (members or 0), 0, 0)
            self._add(key, stage, FAILED, "", 0, sign * (failed or 0), 0, 0)
            if not members:
                self._add(key, stage, EMPTY, short, 0, sign, 0, 0)

    def add_failures(self, rows: Iterable[tuple[Any, ...]], sign: int) -> None:
        """Adds failed rollouts, as (experiment, stage, code)."""
        for experiment, stage, code in rows:
            if experiment is not None and stage is not None:
                short = (code or "")[:REASON_CHARACTERS]
                self._add(bytes(experiment), stage, FAILED_ROLLOUTS, short, 0, sign, 0, 0)

    def _add(self, experiment: bytes, stage: int, kind: str, reason: str, length: int, *change: int) -> None:
        """Adds changes (count, prompt tokens, response tokens) to a stage's sums."""
        key = experiment, stage, kind, reason, length
        sums = self._stages.get(key)
        if sums is None:
            self._stages[key] = list(change)
        else:
            sums[0] += change[0]
            sums[1] += change[1]
            sums[2] += change[2]

    def writes(self) -> Generator[Write, object, None]:
        """Yields the statements of the changes."""
        # A count of zero is no row: whether a count was ever above zero depends on the interleaving.
        counts: list[Values] = [(*key, count) for key, count in sorted(self._experiments.items()) if count]
        if counts:
            yield Write(_COUNT_IN_FILE, _COUNT_ON_SERVER, counts)
        if less := [row[:3] for row in counts if int(row[3] or 0) < 0]:
            yield Write(_EMPTY_IN_FILE, _EMPTY_ON_SERVER, less)
        stages: list[Values] = [(*key, *sums) for key, sums in sorted(self._stages.items()) if any(sums)]
        if stages:
            yield Write(_STAGE_IN_FILE, _STAGE_ON_SERVER, stages)
        if less := [row[:5] for row in stages if int(row[5] or 0) < 0]:
            yield Write(_NO_STAGE_IN_FILE, _NO_STAGE_ON_SERVER, less)


_UNDECIDED: Final = (OPEN, WAITING)
"""States of experiences without a plan that may still be trained: in an open group, or waiting for a batch."""
