# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""`StateUpdate`: the states of experiences and the counts of their experiments, renewed in the transaction of the rows.

A state follows from rows of several events: the experience, its lease, its group, batches and retirement. Only
experiences touched by a transaction are evaluated again, so the costs do not grow with the history. States and counts
are functions of the other tables, and therefore equal after any interleaving of the partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from rftd.storage.database.tables.base import table_of
from rftd.storage.database.tables.batches import Batches, BatchItems
from rftd.storage.database.tables.experiences import Experiences, Retirements
from rftd.storage.database.tables.steps import Steps
from rftd.storage.database.tables.tasks import Groups, Leases
from rftd.storage.projector.upserts import Upsert, Values
from rftd.storage.queries.books import GROUP, MAPPED_ROLLOUTS, PRODUCED, RETIRED
from rftd.storage.queries.counting import ABANDONED

REASON_CHARACTERS: Final = 500
"""Maximum length of a reason in the counts: a key of an index."""

_EVALUATED: Final = f"""SELECT {{place}}, e.group_id, e.experiment, e.state, e.retired_reason, e.retired_used, e.step,
    e.staleness_versions, e.uses, {{produced}}, g.member_map,
    CASE WHEN e.rollout < {MAPPED_ROLLOUTS} THEN SUBSTR(g.member_map, CAST(e.rollout + 1 AS INTEGER), 1) END,
    r.experience, r.reason, r.uses, b.step, b.max_uses, i.use, i.staleness_versions
FROM {{keys}}experiences e {GROUP} {RETIRED}
    LEFT JOIN batch_items i ON i.experience = e.id
    LEFT JOIN batches b ON b.id = i.batch AND b.planned_offset = i.planned_offset AND b.experiment = e.experiment
        AND NOT {ABANDONED}
WHERE """
_CLOSED: Final = """SELECT g.experiment, g.members, g.failed, g.code FROM groups g
WHERE g.closed_offset IS NOT NULL AND """
_ABANDONED: Final = """SELECT i.experience FROM batches b JOIN batch_items i ON i.batch = b.id
WHERE b.abandoned_offset IS NOT NULL AND """
_COUNTED: Final = """SELECT e.experiment, e.state, e.retired_reason, e.retired_used FROM {keys}experiences e
WHERE e.state IS NOT NULL AND """
_STATE_IN_FILE: Final = """UPDATE experiences SET state = ?, retired_reason = ?, retired_used = ?, step = ?,
    staleness_versions = ?, uses = ? WHERE rowid = ?"""
_STATE_ON_SERVER: Final = """UPDATE experiences e SET state = n.state, retired_reason = n.retired_reason,
    retired_used = n.retired_used, step = n.step, staleness_versions = n.staleness_versions, uses = n.uses
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::text[])
    AS n(state, retired_reason, retired_used, step, staleness_versions, uses, place)
WHERE e.ctid = n.place::tid"""
_COUNT_IN_FILE: Final = """INSERT INTO counts (experiment, kind, reason, count) VALUES (?, ?, ?, ?)
ON CONFLICT (experiment, kind, reason) DO UPDATE SET count = counts.count + excluded.count"""
_COUNT_ON_SERVER: Final = """INSERT INTO counts (experiment, kind, reason, count)
SELECT * FROM unnest($1::bytea[], $2::text[], $3::text[], $4::bigint[])
ON CONFLICT (experiment, kind, reason) DO UPDATE SET count = counts.count + excluded.count"""
_EMPTY_IN_FILE: Final = "DELETE FROM counts WHERE experiment = ? AND kind = ? AND reason = ? AND count = 0"
_EMPTY_ON_SERVER: Final = """DELETE FROM counts c USING unnest($1::bytea[], $2::text[], $3::text[])
    AS n(experiment, kind, reason)
WHERE c.experiment = n.experiment AND c.kind = n.kind AND c.reason = n.reason AND c.count = 0"""

_PLACE_ON_SERVER: Final = "CAST(e.ctid AS TEXT)"
_PAIR_IN_FILE: Final = "e.group_id = k.column1 AND e.rollout = k.column2"
_PAIR_ON_SERVER: Final = "e.group_id = k.group_id AND e.rollout = k.rollout"
_PAIRS_ON_SERVER: Final = "unnest($1::bytea[], $2::bigint[]) AS k(group_id, rollout) CROSS JOIN "
_SIZES: Final = (1, 8, 64, 512)
"""Numbers of keys in one statement of SQLite: few texts, so that each is parsed once."""


class Query(NamedTuple):
    """A read of rows by ids, or of experiences by pairs of a group and a rollout."""

    sql: str
    """The query up to its condition on the keys."""
    column: str
    """The column compared with an id; empty for pairs."""
    keys: Sequence[Any]
    produced: str = ""

    def in_file(self) -> Iterator[tuple[str, list[Any]]]:
        """Yields texts with parameters for SQLite, some keys each."""
        for first in range(0, len(self.keys), _SIZES[-1]):
            chunk = self.keys[first : first + _SIZES[-1]]
            size = next(size for size in _SIZES if size >= len(chunk))
            if self.column:
                padding = [chunk[-1]] * (size - len(chunk))
                yield f"{self._text('e.rowid')}{self.column} IN ({', '.join('?' * size)})", [*chunk, *padding]
            else:
                pairs = "(VALUES " + ", ".join(["(?, ?)"] * size) + ") k CROSS JOIN "
                nothing = [None] * 2 * (size - len(chunk))
                yield self._text("e.rowid", pairs) + _PAIR_IN_FILE, [*(part for key in chunk for part in key), *nothing]

    def on_server(self) -> tuple[str, tuple[list[Any], ...]]:
        """Returns the text and the arrays of the keys for Postgres."""
        if self.column:
            return f"{self._text(_PLACE_ON_SERVER)}{self.column} = ANY($1::bytea[])", (list(self.keys),)
        columns = zip(*self.keys, strict=True)
        return self._text(_PLACE_ON_SERVER, _PAIRS_ON_SERVER) + _PAIR_ON_SERVER, tuple(map(list, columns))

    def _text(self, place: str, keys: str = "") -> str:
        return self.sql.format(place=place, keys=keys, produced=self.produced)


class Write(NamedTuple):
    """A statement run for each row, as text for SQLite and for Postgres (arrays of columns)."""

    in_file: str
    on_server: str
    rows: Sequence[Values]


Dialogue = Generator[Query | Write, list[Any], None]
"""Queries and writes in order, each answered with the rows of the query (empty for a write)."""
_Count = tuple[bytes, str, str]
_State = tuple[Any, ...]
"""The columns of a state: name, reason and use of a retirement, step, staleness, uses."""
_WITHOUT_EFFECT: Final[_State] = (None,) * 6


class StateUpdate:
    """The update of states and counts after some row changes: `before` the rows are written, and `after`."""

    def __init__(self, rows: Mapping[Upsert, Sequence[Values]]) -> None:
        """Collects the ids touched by the row changes."""
        self._groups: set[bytes] = set()
        """Groups with new leases, or a close."""
        self._rollouts: set[tuple[bytes, int]] = set()
        """Rollouts, by group and number, with new experiences or failures."""
        self._closed: set[bytes] = set()
        self._experiences: set[bytes] = set()
        """Experiences with new plans or retirements."""
        self._batches: set[bytes] = set()
        """Batches with an abandonment or a completed step."""
        self._plans: set[bytes] = set()
        self._leases: set[bytes] = set()
        for upsert, changes in rows.items():
            for name, touched in _TOUCHING.get((upsert.table.name, upsert.partition), ()):
                index = upsert.columns.index(name)
                if name == "rollout":  # after the group, the first columns of the key
                    self._rollouts.update([row[:2] for row in changes])  # type: ignore[misc]
                else:
                    getattr(self, touched).update([row[index] for row in changes])
        self._experiences.discard(None)
        self._counts: Counter[_Count] = Counter()

    def before(self) -> Dialogue:
        """Takes the present counts of touched groups away, and notes the ids in rows about to be replaced."""
        # A lease or a plan at a lower position may replace another one with the same id.
        if self._leases:
            rows = yield Query("SELECT l.subject FROM leases l WHERE ", "l.id", list(self._leases))
            self._groups.update(bytes(row[0]) for row in rows if row[0])
        self._rollouts = {rollout for rollout in self._rollouts if rollout[0] not in self._groups}
        for keys, column in self._keys():
            self._count((yield Query(_COUNTED, column, keys)), -1)
        if self._closed:
            self._count_groups((yield Query(_CLOSED, "g.id", list(self._closed))), -1)
        if self._plans:
            rows = yield Query("SELECT i.experience FROM batch_items i WHERE ", "i.batch", list(self._plans))
            self._experiences.update(bytes(row[0]) for row in rows if row[0])

    def after(self) -> Dialogue:
        """Evaluates the touched experiences, and writes changed states and counts."""
        if self._closed:
            self._count_groups((yield Query(_CLOSED, "g.id", list(self._closed))), 1)
        if self._batches:
            rows = yield Query(_ABANDONED, "b.id", list(self._batches))
            self._experiences.update(bytes(row[0]) for row in rows if row[0])
        changed: list[Values] = []
        evaluated = set[Any]()
        for keys, column in self._keys():
            states = _merged((yield Query(_EVALUATED, column, keys, PRODUCED)))
            self._count([(experiment, *after[:3]) for experiment, _, after in states.values()], 1)
            evaluated |= states.keys()
            changed += [(*after, place) for place, (_, before, after) in states.items() if before != after]
        if self._experiences:
            # Plans and retirements do not change which record ended a rollout: `state` tells it.
            rows = yield Query(_EVALUATED, "e.state IS NOT NULL AND e.id", list(self._experiences), "1 = 1")
            for place, (experiment, before, after) in _merged(rows).items():
                if place not in evaluated and before != after:
                    self._count([(experiment, *before[:3])], -1)
                    self._count([(experiment, *after[:3])], 1)
                    changed.append((*after, place))
        if changed:
            yield Write(_STATE_IN_FILE, _STATE_ON_SERVER, changed)
        counts: list[Values] = [(*key, count) for key, count in sorted(self._counts.items()) if count]
        if counts:
            yield Write(_COUNT_IN_FILE, _COUNT_ON_SERVER, counts)
        # A count of zero is no row: whether a count was ever above zero depends on the interleaving.
        if less := [row[:3] for row in counts if int(row[3] or 0) < 0]:
            yield Write(_EMPTY_IN_FILE, _EMPTY_ON_SERVER, less)

    def _keys(self) -> list[tuple[list[Any], str]]:
        """Returns the keys of experiences to be evaluated as a whole, with the column compared."""
        keys: list[tuple[list[Any], str]] = [
            (list(self._groups), "e.group_id"),
            (list(self._rollouts), ""),
        ]
        return [(ids, column) for ids, column in keys if ids]

    def _count(self, states: Iterable[tuple[Any, ...]], sign: int) -> None:
        """Adds experiences, as (experiment, state, reason, use before retirement)."""
        for experiment, state, reason, used in states:
            if state is None or experiment is None:
                continue
            key = bytes(experiment)
            short = "" if reason is None else reason[:REASON_CHARACTERS]
            self._counts[key, state, short] += sign
            if used:
                self._counts[key, "retired_used", short] += sign

    def _count_groups(self, rows: Iterable[tuple[Any, ...]], sign: int) -> None:
        """Adds closed groups, as (experiment, members, failed, code)."""
        for experiment, members, failed, code in rows:
            if experiment is None:
                continue
            key = bytes(experiment)
            self._counts[key, "groups", ""] += sign
            self._counts[key, "members", ""] += sign * (members or 0)
            self._counts[key, "failed", ""] += sign * (failed or 0)
            if code:
                self._counts[key, "code", code[:REASON_CHARACTERS]] += sign


def _merged(rows: Iterable[tuple[Any, ...]]) -> dict[Any, tuple[bytes | None, _State, _State]]:
    """Returns experiment, state before and state now by the place of a row; the query has a row for each use."""
    states: dict[Any, tuple[bytes | None, _State, _State]] = {}
    for row in rows:
        place, _, experiment = row[:3]
        produced, closed, member, retired, reason, retired_uses, step, max_uses, use, staleness = row[9:]
        before = row[3:9]
        if not produced:
            states[place] = experiment, before, _WITHOUT_EFFECT
            continue
        uses = 0 if max_uses is None else 1  # null: no plan, or none with an effect
        used_up = uses and max_uses > 0 and use is not None and use >= max_uses
        if uses == 0:
            step = staleness = None
        former = states.get(place)
        if former is not None:
            state, _, _, former_step, former_staleness, former_uses = former[2]
            uses += former_uses
            used_up = used_up or state == "planned"
            step, staleness = _highest(former_step, step), _highest(former_staleness, staleness)
        if retired is not None:
            after: _State = "retired", reason, int((retired_uses or 0) > 0), step, staleness, uses
        elif uses:
            after = "planned" if used_up else "cooling", None, None, step, staleness, uses
        elif closed is None:
            after = "open", None, None, None, None, 0
        else:
            after = "waiting" if member == "1" else "late", None, None, None, None, 0
        states[place] = experiment, before, after
    return states


def _highest(before: int | None, number: int | None) -> int | None:
    return number if before is None else before if number is None else max(before, number)


def _touching(kind: type[Any], prefix: str) -> tuple[str, str]:
    return str(table_of(kind).name), f"{prefix}_partition"


_TOUCHING: Final = {
    _touching(Experiences, "produced"): (("rollout", "_rollouts"),),
    _touching(Experiences, "failed"): (("rollout", "_rollouts"),),
    _touching(Leases, "leased"): (("id", "_leases"), ("subject", "_groups")),
    _touching(Groups, "closed"): (("id", "_groups"), ("id", "_closed")),
    _touching(Retirements, "retired"): (("experience", "_experiences"),),
    _touching(BatchItems, "planned"): (("experience", "_experiences"),),
    _touching(Batches, "planned"): (("id", "_plans"),),
    _touching(Batches, "abandoned"): (("id", "_batches"),),
    _touching(Steps, "completed"): (("batch", "_batches"),),
}
"""The ids touched by the row changes of each event type."""
