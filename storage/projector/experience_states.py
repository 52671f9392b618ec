# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""`StateUpdate`: the states of experiences and the counts of their experiments, renewed in the transaction of the rows.

A state follows from rows of several events: the experience, its lease, its group, batches and retirement. Only
experiences touched by a transaction are evaluated again, so the costs do not grow with the history. States and counts
are functions of the other tables, and therefore equal after any interleaving of the partitions.

An ordinary experience, the only record of its rollout, is inserted together with its state, and changes state with
narrow reads of its group and plans. Every other case is evaluated by the whole rule, from all rows of the rollout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

from rftd.storage.database.tables.base import table_of
from rftd.storage.database.tables.batches import Batches, BatchItems
from rftd.storage.database.tables.experiences import Experiences, Retirements
from rftd.storage.database.tables.steps import Steps
from rftd.storage.database.tables.tasks import Groups, Leases
from rftd.storage.projector.counts_update import CountsUpdate, Write
from rftd.storage.projector.upserts import Upsert, Values
from rftd.storage.queries.books import FAILED, GROUP, MAPPED_ROLLOUTS, PRODUCED, RETIRED
from rftd.storage.queries.counting import ABANDONED

_EVALUATED: Final = f"""SELECT {{place}}, e.group_id, e.experiment, e.state, e.retired_reason, e.retired_used, e.step,
    e.staleness_versions, e.uses, {{produced}}, g.member_map,
    CASE WHEN e.rollout < {MAPPED_ROLLOUTS} THEN SUBSTR(g.member_map, CAST(e.rollout + 1 AS INTEGER), 1) END,
    r.experience, r.reason, r.uses, e.stage, e.prompt_tokens, e.response_tokens,
    b.step, b.max_uses, i.use, i.staleness_versions
FROM {{keys}}experiences e {GROUP} {RETIRED}
    LEFT JOIN batch_items i ON i.experience = e.id
    LEFT JOIN batches b ON b.id = i.batch AND b.planned_offset = i.planned_offset AND b.experiment = e.experiment
        AND NOT {ABANDONED}
WHERE """
"""Query for everything that decides the states of experiences, up to the condition on the keys."""
_PRESENT: Final = "SELECT e.group_id, e.rollout FROM experiences e WHERE "
"""Query for rollouts that have a row already, up to the condition on the keys."""
_LEASED: Final = "SELECT l.id, l.worker, l.subject FROM leases l WHERE "
"""Query for worker and group of leases, up to the condition on the keys."""
_MAPS: Final = "SELECT g.id, g.member_map FROM groups g WHERE g.closed_offset IS NOT NULL AND "
"""Query for the members of closed groups, up to the condition on the keys."""
_ITEMS: Final = """SELECT i.experience, i.batch, i.planned_offset, i.use, i.staleness_versions
FROM batch_items i WHERE """
"""Query for the plans of experiences, up to the condition on the keys."""
_STANDING: Final = f"""SELECT b.id, b.planned_offset, b.experiment, b.step, b.max_uses FROM batches b
WHERE b.planned_offset IS NOT NULL AND NOT {ABANDONED} AND """
"""Query for plans that were not abandoned, up to the condition on the keys."""
_RETIRED: Final = "SELECT r.experience, r.reason, r.uses FROM retirements r WHERE "
"""Query for retirements, up to the condition on the keys."""
_UNPLANNED: Final = """SELECT {place}, e.group_id, e.rollout, e.state,
    e.experiment, e.stage, e.prompt_tokens, e.response_tokens FROM {keys}experiences e
WHERE e.state IN ('open', 'waiting', 'late') AND """
"""Query for experiences whose state a closing may change, up to the condition on the keys."""
_CLOSED: Final = """SELECT g.experiment, g.stage, g.members, g.failed, g.code FROM groups g
WHERE g.closed_offset IS NOT NULL AND """
"""Query for the counts of closed groups, up to the condition on the keys."""
_ABANDONED: Final = """SELECT i.experience FROM batches b JOIN batch_items i ON i.batch = b.id
WHERE b.abandoned_offset IS NOT NULL AND """
"""Query for the experiences of abandoned plans, up to the condition on the keys."""
_COUNTED: Final = """SELECT e.experiment, e.stage, e.prompt_tokens, e.response_tokens,
    e.state, e.retired_reason, e.retired_used, e.uses FROM {keys}experiences e
WHERE e.state IS NOT NULL AND """
"""Query for the counted columns of experiences with a state, up to the condition on the keys."""
_FAILURES: Final = f"""SELECT e.failed_experiment, e.failed_stage, e.failed_code FROM {{keys}}experiences e
WHERE {FAILED} AND """
"""Query for failed rollouts, up to the condition on the keys."""
_STATE_IN_FILE: Final = """UPDATE experiences SET state = ?, retired_reason = ?, retired_used = ?, step = ?,
    staleness_versions = ?, uses = ? WHERE rowid = ?"""
"""Statement writing a state, on SQLite."""
_STATE_ON_SERVER: Final = """UPDATE experiences e SET state = n.state, retired_reason = n.retired_reason,
    retired_used = n.retired_used, step = n.step, staleness_versions = n.staleness_versions, uses = n.uses
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::text[])
    AS n(state, retired_reason, retired_used, step, staleness_versions, uses, place)
WHERE e.ctid = n.place::tid"""
"""Statement writing states, on Postgres."""
_CLOSED_IN_FILE: Final = "UPDATE experiences SET state = ? WHERE rowid = ?"
"""Statement writing the state after a closing, on SQLite."""
_CLOSED_ON_SERVER: Final = """UPDATE experiences e SET state = n.state
FROM unnest($1::text[], $2::text[]) AS n(state, place) WHERE e.ctid = n.place::tid"""
"""Statement writing the states after closings, on Postgres."""
_PLACE_ON_SERVER: Final = "CAST(e.ctid AS TEXT)"
"""A row's physical address on Postgres."""
_PAIR_IN_FILE: Final = "e.group_id = k.column1 AND e.rollout = k.column2"
"""Condition on a pair of group and rollout, on SQLite."""
_PAIR_ON_SERVER: Final = "e.group_id = k.group_id AND e.rollout = k.rollout"
"""Condition on a pair of group and rollout, on Postgres."""
_PAIRS_ON_SERVER: Final = "unnest($1::bytea[], $2::bigint[]) AS k(group_id, rollout) CROSS JOIN "
"""Table of the requested pairs, on Postgres."""
_SIZES: Final = (1, 8, 64, 512)
"""Numbers of keys in one statement of SQLite: few texts, so that each is parsed once."""


class Query(NamedTuple):
    """A read of rows by ids, or of experiences by pairs of a group and a rollout."""

    sql: str
    """The query up to its condition on the keys."""
    column: str
    """The column compared with an id; empty for pairs."""
    keys: Sequence[Any]
    """Ids, or pairs of a group and a rollout."""
    produced: str = ""
    """SQL condition on the record of the experience, inserted into the text at `{produced}`; empty if the text has no
    such place.
    """

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
        """Returns the text with `place` as the row's address and `keys` as a joined table."""
        return self.sql.format(place=place, keys=keys, produced=self.produced)


Dialogue = Generator[Query | Write, list[Any], None]
"""Queries and writes in order, each answered with the rows of the query (empty for a write)."""
_State = tuple[Any, ...]
"""The columns of a state: name, reason and use of a retirement, step, staleness, uses."""
_WITHOUT_EFFECT: Final[_State] = (None,) * 6
"""State of a record without an effect."""


class StateUpdate:
    """The update of states and counts after some row changes.

    `before` runs before any row is written, `insert` once the rows of every upsert except `produced` are, and `after`
    at the end.
    """

    def __init__(self, rows: Mapping[Upsert, Sequence[Values]]) -> None:
        """Collects the ids touched by the row changes."""
        self._rows = rows
        self._produced: Upsert | None = None
        """Upsert of produced experiences; None if the row changes contain no experience."""
        self._fresh: Sequence[Values] = ()
        """Experiences not in the table yet, each the only record of its rollout."""
        self._repeated: list[Values] = []
        """Experiences of rollouts with other records."""
        self._leased_groups: set[bytes] = set()
        """Groups with new leases."""
        self._groups: set[bytes] = set()
        """Groups with rows and with new leases."""
        self._rollouts: set[tuple[Any, Any]] = set()
        """Rollouts, by group and number, with failures or several records."""
        self._closed: set[bytes] = set()
        """Groups with new closings."""
        self._experiences: set[bytes] = set()
        """Experiences with new plans or retirements."""
        self._batches: set[bytes] = set()
        """Batches with an abandonment or a completed step."""
        self._plans: set[bytes] = set()
        """Batches planned or abandoned."""
        self._leases: set[bytes] = set()
        """New leases."""
        for upsert, changes in rows.items():
            written = upsert.table.name, upsert.partition
            if written == _PRODUCED:
                self._produced = upsert
                self._fresh = changes
            elif written == _FAILED:
                self._rollouts.update([(row[0], row[1]) for row in changes])
            for name, touched in _TOUCHING.get(written, ()):
                index = upsert.columns.index(name)
                getattr(self, touched).update([row[index] for row in changes])
        self._experiences.discard(None)
        self._counts = CountsUpdate()
        """Changes of the counts."""

    def before(self) -> Dialogue:
        """Takes the present counts of touched rows away, and notes the ids in rows about to be replaced."""
        # A lease or a plan at a lower position may replace another one with the same id.
        if self._leases:
            rows = yield Query("SELECT l.subject FROM leases l WHERE ", "l.id", list(self._leases))
            self._leased_groups.update(bytes(row[0]) for row in rows if row[0])
        if touched := self._leased_groups.union([row[0] for row in self._fresh]):
            rows = yield Query(_PRESENT, "e.group_id", list(touched))
            self._split_fresh({(bytes(group), rollout) for group, rollout in rows})
        ids = Counter([row[self._produced.columns.index("id")] for row in self._fresh] if self._produced else ())
        if planned := self._experiences.intersection(ids):
            # Their plans are read for the insertion already.
            rows = yield Query("SELECT e.id FROM experiences e WHERE ", "e.id", list(planned))
            present = {bytes(row[0]) for row in rows}
            self._experiences -= {id for id in planned if ids[id] == 1 and id not in present}
        for keys, column in self._evaluated_keys():
            for row in (yield Query(_COUNTED, column, keys)):
                self._counts.add_experience(row[:4], row[4:], -1)
            self._counts.add_failures((yield Query(_FAILURES, column, keys)), -1)
        if self._closed:
            self._counts.add_groups((yield Query(_CLOSED, "g.id", list(self._closed))), -1)
        if self._plans:
            rows = yield Query("SELECT i.experience FROM batch_items i WHERE ", "i.batch", list(self._plans))
            self._experiences.update(bytes(row[0]) for row in rows if row[0])

    def _split_fresh(self, present: set[tuple[bytes, int]]) -> None:
        """Divides the experiences into fresh ones and those of rollouts with other records."""
        self._groups = self._leased_groups.intersection([group for group, _ in present])
        recorded = self._rollouts | present
        records = Counter([row[:2] for row in self._fresh])
        fresh: list[Values] = []
        for row in self._fresh:
            alone = records[row[:2]] == 1 and row[:2] not in recorded and row[0] not in self._groups
            (fresh if alone else self._repeated).append(row)
        self._fresh = fresh
        self._rollouts.update([(row[0], row[1]) for row in self._repeated])
        self._rollouts = {rollout for rollout in self._rollouts if rollout[0] not in self._groups}

    def insert(self) -> Dialogue:
        """Inserts the fresh experiences together with their states."""
        upsert = self._produced
        if upsert is None or not self._fresh:
            return
        lease, experience, experiment = map(upsert.columns.index, ("lease", "id", "experiment"))
        counted_of = itemgetter(*map(upsert.columns.index, _COUNTED_COLUMNS))
        leases = {row[lease] for row in self._fresh}
        leased: set[Any] = {
            (bytes(id), bytes(worker or b""), bytes(subject or b""))
            for id, worker, subject in (yield Query(_LEASED, "l.id", list(leases)))
        }
        groups = {row[0] for row in self._fresh}
        maps: dict[Any, str] = {bytes(id): digits or "" for id, digits in (yield Query(_MAPS, "g.id", list(groups)))}
        ids = [row[experience] for row in self._fresh]
        items = yield Query(_ITEMS, "i.experience", ids)
        batches = (yield Query(_STANDING, "b.id", list({item[1] for item in items}))) if items else []
        plans = _plans_of(items, batches)
        retired = {bytes(id): (reason, uses) for id, reason, uses in (yield Query(_RETIRED, "r.experience", ids))}
        inserted: list[Values] = []
        row: Any
        for row in self._fresh:
            id, group, run = row[experience], row[0], row[experiment]
            state = _WITHOUT_EFFECT
            if (row[lease], row[2], group) in leased:
                digits = maps.get(group)
                state = _state_of(
                    retired.get(id), plans.get((id, run), ()), digits is not None, _is_member(digits, row[1])
                )
                self._counts.add_experience(counted_of(row), state, 1)
            inserted.append(row + state)
        yield Write(*_insertion(upsert), inserted)

    @property
    def first(self) -> Sequence[Upsert]:
        """The upserts whose rows are written before `insert`."""
        return [upsert for upsert in self._rows if upsert is not self._produced]

    @property
    def repeated(self) -> Mapping[Upsert, list[Values]]:
        """The experiences not inserted by `insert`."""
        return {self._produced: self._repeated} if self._produced is not None and self._repeated else {}

    def after(self) -> Dialogue:
        """Evaluates the touched experiences, and writes changed states and counts."""
        if self._batches:
            rows = yield Query(_ABANDONED, "b.id", list(self._batches))
            self._experiences.update(bytes(row[0]) for row in rows if row[0])
        changed: list[Values] = []
        evaluated = set[Any]()
        for keys, column in self._evaluated_keys():
            states = _merged((yield Query(_EVALUATED, column, keys, PRODUCED)))
            for counted, _, after in states.values():
                self._counts.add_experience(counted, after, 1)
            evaluated |= states.keys()
            changed += [(*after, rowid) for rowid, (_, before, after) in states.items() if before != after]
        yield from self._close_groups(evaluated)
        if self._experiences:
            # Plans and retirements do not change which record ended a rollout: `state` tells it.
            rows = yield Query(_EVALUATED, "e.state IS NOT NULL AND e.id", list(self._experiences), "1 = 1")
            for rowid, (counted, before, after) in _merged(rows).items():
                if rowid not in evaluated and before != after:
                    self._counts.add_experience(counted, before, -1)
                    self._counts.add_experience(counted, after, 1)
                    changed.append((*after, rowid))
        if changed:
            yield Write(_STATE_IN_FILE, _STATE_ON_SERVER, changed)
        for keys, column in self._evaluated_keys():  # with the new states: a rollout with an experience did not fail
            self._counts.add_failures((yield Query(_FAILURES, column, keys)), 1)
        yield from self._counts.writes()

    def _close_groups(self, evaluated: set[Any]) -> Dialogue:
        """Counts the closed groups, and writes the states of their unplanned experiences."""
        if not self._closed:
            return
        ids = list(self._closed)
        self._counts.add_groups((yield Query(_CLOSED, "g.id", ids)), 1)
        maps = {bytes(id): digits or "" for id, digits in (yield Query(_MAPS, "g.id", ids))}
        changed: list[Values] = []
        for rowid, group, rollout, before, *counted in (yield Query(_UNPLANNED, "e.group_id", ids)):
            after = "waiting" if _is_member(maps.get(bytes(group)), rollout) else "late"
            if before != after and rowid not in evaluated:
                changed.append((after, rowid))
                self._counts.add_experience(tuple(counted), (before, None, None, 0), -1)
                self._counts.add_experience(tuple(counted), (after, None, None, 0), 1)
        if changed:  # before the plans are evaluated, with the states read back
            yield Write(_CLOSED_IN_FILE, _CLOSED_ON_SERVER, changed)

    def _evaluated_keys(self) -> list[tuple[list[Any], str]]:
        """Returns the keys of experiences to be evaluated as a whole, with the column compared."""
        keys: list[tuple[list[Any], str]] = [
            (list(self._groups), "e.group_id"),
            (list(self._rollouts), ""),
        ]
        return [(ids, column) for ids, column in keys if ids]


def _plans_of(
    items: Iterable[tuple[Any, ...]], batches: Iterable[tuple[Any, ...]]
) -> dict[tuple[bytes, bytes], list[tuple[Any, ...]]]:
    """Returns the standing plans by experience and experiment."""
    standing = {(bytes(id), offset): plan for id, offset, *plan in batches}
    plans: dict[tuple[bytes, bytes], list[tuple[Any, ...]]] = {}
    for experience, batch, offset, use, staleness_versions in items:
        plan = standing.get((bytes(batch), offset))
        if plan is not None and plan[0] is not None:
            uses = plans.setdefault((bytes(experience), bytes(plan[0])), [])
            uses.append((plan[1], plan[2], use, staleness_versions))
    return plans


def _is_member(digits: str | None, rollout: int) -> bool:
    """True if the map of a closed group names a rollout."""
    return digits is not None and 0 <= rollout < len(digits) and digits[rollout] == "1"


def _merged(rows: Iterable[tuple[Any, ...]]) -> dict[Any, tuple[tuple[Any, ...], _State, _State]]:
    """Returns the counted columns, the state before and the state now by the row's id, of a row for each use."""
    plans: dict[Any, list[tuple[Any, ...]]] = {}
    facts: dict[Any, tuple[Any, ...]] = {}
    for row in rows:
        rowid = row[0]
        facts[rowid] = row
        row_plans = plans.setdefault(rowid, [])
        if row[19] is not None:  # null: no plan, or none with an effect
            row_plans.append(row[18:])
    states: dict[Any, tuple[tuple[Any, ...], _State, _State]] = {}
    for rowid, row in facts.items():
        produced, closed, member, retired, reason, uses = row[9:15]
        after = _WITHOUT_EFFECT
        if produced:
            retirement = (reason, uses) if retired is not None else None
            after = _state_of(retirement, plans[rowid], closed is not None, member == "1")
        states[rowid] = (row[2], *row[15:18]), row[3:9], after
    return states


def _state_of(
    retirement: tuple[str | None, int | None] | None, plans: Sequence[tuple[Any, ...]], closed: bool, member: bool
) -> _State:
    """Returns the state of an experience with an effect; plans as (step, max_uses, use, staleness)."""
    step = staleness = None
    used_up = False
    for step_number, max_uses, use, staleness_versions in plans:
        used_up = used_up or (max_uses > 0 and use is not None and use >= max_uses)
        step, staleness = _max_or_none(step, step_number), _max_or_none(staleness, staleness_versions)
    if retirement is not None:
        return "retired", retirement[0], int((retirement[1] or 0) > 0), step, staleness, len(plans)
    if plans:
        return "planned" if used_up else "cooling", None, None, step, staleness, len(plans)
    return ("open" if not closed else "waiting" if member else "late"), None, None, None, None, 0


def _max_or_none(before: int | None, number: int | None) -> int | None:
    """Returns the larger of two numbers; None if both are None."""
    return number if before is None else before if number is None else max(before, number)


def _touching(kind: type[Any], prefix: str) -> tuple[str, str]:
    """Returns the name of a table and the name of its partition column with `prefix`, which together identify an
    upsert.
    """
    return str(table_of(kind).name), f"{prefix}_partition"


def _insertion(produced: Upsert) -> tuple[str, str]:
    """Returns the texts that insert new experiences with their states, for SQLite and Postgres."""
    columns = ", ".join((*produced.columns, *_STATE))
    kinds = [*produced.kinds, str, str, int, int, int, int]
    marks = ", ".join("?" * len(kinds))
    arrays = ", ".join(f"${number}::{_ARRAYS[kind]}" for number, kind in enumerate(kinds, start=1))
    start = f"INSERT INTO experiences ({columns})"
    return f"{start} VALUES ({marks})", f"{start} SELECT * FROM unnest({arrays})"


_PRODUCED: Final = _touching(Experiences, "produced")
"""Table name and partition column by which the upsert of produced experiences is recognised."""
_FAILED: Final = _touching(Experiences, "failed")
"""Table name and partition column by which the upsert of failed rollouts is recognised."""
_STATE: Final = ("state", "retired_reason", "retired_used", "step", "staleness_versions", "uses")
"""Columns of a state."""
_COUNTED_COLUMNS: Final = ("experiment", "stage", "prompt_tokens", "response_tokens")
"""Columns that a count depends on, besides the state."""
_ARRAYS: Final[dict[type, str]] = {bytes: "bytea[]", str: "text[]", int: "bigint[]", float: "float8[]"}
"""Array type on Postgres of each Python type."""
_TOUCHING: Final = {
    _touching(Leases, "leased"): (("id", "_leases"), ("subject", "_leased_groups")),
    _touching(Groups, "closed"): (("id", "_closed"),),
    _touching(Retirements, "retired"): (("experience", "_experiences"),),
    _touching(BatchItems, "planned"): (("experience", "_experiences"),),
    _touching(Batches, "planned"): (("id", "_plans"),),
    _touching(Batches, "abandoned"): (("id", "_batches"),),
    _touching(Steps, "completed"): (("batch", "_batches"),),
}
"""The ids touched by the row changes of each event type."""
