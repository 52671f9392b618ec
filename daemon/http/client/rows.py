"""`RowList`: a list of typed rows, accepted by pandas and polars unchanged."""

from __future__ import annotations

import difflib
import html
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Self, TypeVar, cast, overload

import msgspec

from rftd.daemon.http.views.wire import wire_name
from rftd.ops.errors import UsageError

R = TypeVar("R")
"""Type of a view."""

_FIGURES: Final = ("metrics", "figures")
"""Fields spread into columns under the names of their figures; other mappings keep the field's name as a prefix."""
_NAMES: Final = ("step", "version", "stage", "taskset")
"""Fields that name a row of figures."""
_SHOWN_ROWS: Final = 50
"""Maximum number of rows drawn in a notebook."""
_SHOWN_CHARACTERS: Final = 200
"""Maximum characters of a cell drawn in a notebook."""


class RowDict(dict[str, Any]):
    """One row: its columns as a dict, and the fields of its view as attributes."""

    __slots__ = ("view",)

    def __init__(self, view: msgspec.Struct, *, metrics: Sequence[str] | None = None, **more: Any) -> None:
        """Builds a row of the named figures if `metrics` are given, with the columns of `more` in front."""
        columns = dict(_flat_columns(view, metrics))
        if metrics is not None:
            columns = {name: columns[name] for name in (*_NAMES, *metrics) if name in columns}
        super().__init__(more, **columns)
        self.view = view

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "view":
            raise AttributeError(name)
        return self[name] if name in self else getattr(self.view, name)

    def __repr__(self) -> str:
        return repr(self.view)


class RowList(list[R]):
    """Typed rows with `pandas.DataFrame(rows)` and `polars.DataFrame(rows)`: nested figures are columns, times UTC.

    Static type of an element is the view; at run time an element is a `RowDict`.
    """

    @classmethod
    def of(cls, views: Iterable[R], *, metrics: Sequence[str] | None = None) -> Self:
        """Returns the rows of views, which are structs. Raises UsageError for a metric missing in every row."""
        views = list(views)
        if metrics is not None and views:
            metric_names = {name for view in views for name in _figure_names(cast("msgspec.Struct", view))}
            if unknown := next((name for name in metrics if name not in metric_names), None):
                near = difflib.get_close_matches(unknown, metric_names, n=3)
                fix = f"did you mean {', '.join(near)}?" if near else "leave `metrics` out to get all"
                raise UsageError(f"no metric {unknown!r}", field="metrics", fix=fix)
        return cls(cast(R, RowDict(cast("msgspec.Struct", view), metrics=metrics)) for view in views)

    @overload  # type: ignore[override]
    def __getitem__(self, index: int) -> R: ...
    @overload
    def __getitem__(self, index: slice) -> RowList[R]: ...
    @overload
    def __getitem__(self, index: str) -> list[Any]: ...

    def __getitem__(self, index: int | slice | str) -> R | RowList[R] | list[Any]:
        """Returns a row by position, rows by slice, or the values of a column by name; None for an absent value."""
        if isinstance(index, str):
            if self and index not in self.columns:
                raise KeyError(index)
            return [row.get(index) for row in self.to_dicts()]
        return RowList(super().__getitem__(index)) if isinstance(index, slice) else super().__getitem__(index)

    @property
    def columns(self) -> list[str]:
        """Names of all columns, in the order of their first row."""
        return list(dict.fromkeys(name for row in self.to_dicts() for name in row))

    def to_dicts(self) -> list[dict[str, Any]]:
        """Returns the rows as plain dicts."""
        return [dict(cast("RowDict", row)) for row in self]

    def _repr_html_(self) -> str:
        """Returns the first rows as a table, or as the rows draw themselves, for notebooks."""
        from rftd.daemon.http.client.html import Html, tag, text

        if self and hasattr(self[0], "_repr_html_"):
            return tag("div", *(Html(cast(Any, row)._repr_html_()) for row in self[:_SHOWN_ROWS]))
        columns = self.columns
        head = tag("tr", *(tag("th", text(name)) for name in columns))
        lines = [
            tag("tr", *(tag("td", text(_cell_text(row.get(name)), most=_SHOWN_CHARACTERS)) for name in columns))
            for row in self[:_SHOWN_ROWS].to_dicts()
        ]
        more = f"{len(self)} rows" + (f", the first {_SHOWN_ROWS} shown" if len(self) > _SHOWN_ROWS else "")
        return tag("div", tag("table", head, *lines), tag("p", html.escape(more)), style="overflow-x:auto")


def _flat_columns(view: msgspec.Struct, metrics: Sequence[str] | None, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields name and content of each column of a view; nested fields get names with dots."""
    for name in view.__struct_fields__:
        field = getattr(view, name)
        if name.endswith("_ns"):
            yield prefix + wire_name(name), _datetime_of(field)
        elif isinstance(field, msgspec.Struct):
            yield from _flat_columns(field, metrics, f"{prefix}{name}.")
        elif name in _FIGURES and isinstance(field, dict):
            names = field if metrics is None else metrics
            taken = view.__struct_fields__
            yield from ((f"{prefix}{name}.{key}" if key in taken else prefix + key, field.get(key)) for key in names)
        elif isinstance(field, dict):
            yield from ((f"{prefix}{name}.{key}", msgspec.to_builtins(inner)) for key, inner in field.items())
        else:
            yield prefix + name, msgspec.to_builtins(field)


def _figure_names(view: msgspec.Struct) -> Iterator[str]:
    """Yields the names of a view's figures."""
    for name in _FIGURES:
        yield from getattr(view, name, ())


def _datetime_of(time_ns: int | None) -> datetime | None:
    """Returns a time as a datetime in UTC; None for None."""
    return None if time_ns is None else datetime.fromtimestamp(time_ns / 1e9, UTC)


def _cell_text(field: Any) -> str:
    """Returns a cell as text; empty for None."""
    if field is None:
        return ""
    if isinstance(field, float):
        return f"{field:.6g}"
    if isinstance(field, datetime):
        return field.isoformat(" ", "seconds").removesuffix("+00:00")
    return str(field)
