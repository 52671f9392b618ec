"""`ExperimentDraft` is the experiment file under construction: fields with origins, and a report line per key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

from rftd.daemon.config.field_path import FieldPath, parse, show
from rftd.daemon.config.gaps import GAP
from rftd.daemon.config.issue import Contradiction, FieldError, WrongValue
from rftd.daemon.config.source import SourcePlace
from rftd.daemon.config.validation import all_fields
from rftd.daemon.config.verl.settings import VerlSetting, VerlSettings
from rftd.daemon.config.verl.table import VerlKey, canonical, find
from rftd.daemon.config.yaml_text import one_line, scalar

Outcome: TypeAlias = Literal["mapped", "dropped", "needs a person", "veRL's default", "unknown"]
"""Outcome of the conversion of a key, as printed in the report."""


_MOST_SHOWN: Final = 8
"""Maximum number of values named in the comment of one field."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Placeholder for a missing value, written as `???` and refused until a person has filled it in."""


@dataclass(frozen=True, slots=True)
class ImportLine:
    """A line of the import report on one key: position, outcome, key and explanation."""

    place: SourcePlace | None
    """Position of the key in the script or file; None for a line about no single key."""
    outcome: Outcome
    """Outcome of the key's conversion."""
    key: str
    """The key, with its value if set."""
    text: str
    """Explanation, or the fields set from the key."""

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place else ""
        return f"{where}{self.outcome}: {self.key}{' ' if self.text else ''}{self.text}"


@dataclass(slots=True)
class ExperimentDraft:
    """The experiment file being made: fields by path, with a report line for each of veRL's keys."""

    settings: VerlSettings
    """Keys set for the run of veRL."""
    fields: dict[FieldPath, tuple[Any, str]] = field(default_factory=dict)
    """Value and comment of each field."""
    lines: list[ImportLine] = field(default_factory=list)
    """Report lines in the order of the rules."""
    done: dict[str, list[FieldPath]] = field(default_factory=dict)
    """Fields set from each key."""
    working: Mapping[str, Any] = field(default_factory=dict)
    """Assumed values of unknown keys, used by the rules; fields depending on an assumed value become gaps."""
    wanted: dict[str, str] = field(default_factory=dict)
    """Keys used in a computation although set to a variable, with the reason."""
    notes: dict[str, str] = field(default_factory=dict)
    """A note for the report on one key, in addition to the fields set."""

    def given(self, name: str) -> VerlSetting | None:
        """Returns the key's setting if the user set the key, and not to null; None otherwise. An unknown value is
        replaced by an assumed one.
        """
        setting = self.settings.given.get(name)
        if setting is not None and setting.unknown:
            setting = replace(setting, value=self.working.get(name))
        return None if setting is None or setting.value is None else setting

    def value(self, name: str) -> Any:
        """Returns the value used by veRL: the value set, or the default."""
        setting = self.given(name)
        if setting is not None:
            return setting.value
        row = find(name)
        assert row is not None, name
        return row.default

    def number(self, name: str) -> int:
        """Returns the key's integer value for a computation; 1, with a report line, if a variable unknown to the script
        sets it.
        """
        setting = self.value(name)
        if isinstance(setting, int):
            return setting
        self.wanted[name] = f"it is {setting}, which the script does not assign"
        return 1

    def flag(self, name: str) -> bool:
        """Returns the key's boolean value for a decision; False, with a report line, if a variable unknown to the
        script sets it.
        """
        setting = self.value(name)
        if isinstance(setting, str):
            self.wanted[name] = f"it is {setting}, which the script does not assign"
            return False
        return bool(setting)

    def gap(self, target: str, *names: str, note: str = "", candidates: Sequence[Any] = ()) -> None:
        """Makes a gap of a field, to be filled by a person because of the named keys."""
        path = parse(target)
        assert path is not None, target
        shown = " or ".join(scalar(candidate) for candidate in candidates[:_MOST_SHOWN])
        text = ", ".join(
            self.settings.given[name].shown if not note else self.settings.given[name].written for name in names
        )
        comment = f"{text}: {note}" if note and text else text or note
        comment = f"{shown}: {comment}" if shown else comment
        before = self.fields.get(path)
        if before is not None and isinstance(before[0], Gap):
            comment = before[1] if comment in before[1] else f"{before[1]}; {comment}"
        self.fields[path] = (Gap(), comment)
        for name in names:
            paths = self.done.setdefault(name, [])
            if path not in paths:
                paths.append(path)

    def wrong(self, name: str, problem: str, fix: str | None, kind: type[FieldError] = WrongValue) -> None:
        """Adds an issue for a key that cannot be imported."""
        setting = self.settings.given.get(name)
        position = setting.place if setting is not None else SourcePlace(self.settings.source.origin)
        self.settings.wrong(position, setting.written if setting is not None else name, problem, fix, kind)

    def put(self, target: str, content: Any, *names: str, note: str = "", brief: bool = False) -> None:
        """Sets a field originating from the named keys; `brief`: the comment omits the keys' values."""
        path = parse(target)
        assert path is not None, target
        origins = []
        for name in names:
            setting = self.given(name)
            if setting is None:
                origins.append(f"veRL's default of {name}")
                continue
            origins.append(setting.written if brief or setting.value == content else setting.shown)
            self.done.setdefault(name, []).append(path)
            if note and not brief:
                self.notes[name] = note
        comment = ", ".join(origins)
        self.fields[path] = (content, f"{comment}: {note}" if note and comment else comment or note)

    def put_given(self, target: str, name: str, *, note: str = "") -> None:
        """Sets a field to the key's value, if the key is set."""
        setting = self.given(name)
        if setting is not None:
            self.put(target, setting.value, name, note=note)

    def drop(self, name: str, why: str) -> None:
        """Adds a report line with the reason `why` a key is left out, if the key is set."""
        self._add_line(name, "dropped", why)

    def ask(self, name: str, why: str) -> None:
        """Adds a report line with the decision (`why`) that a person has to make about a key, if the key is set and not
        null.
        """
        setting = self.settings.given.get(name)
        if setting is not None and (setting.value is not None or setting.unknown):
            self._add_line(name, "needs a person", why)

    def remark(self, outcome: Outcome, key: str, text: str, position: SourcePlace | None = None) -> None:
        """Adds a report line not tied to a single key."""
        self.lines.append(ImportLine(position, outcome, key, text))

    def _add_line(self, name: str, outcome: Outcome, why: str) -> None:
        """Adds a report line about a key, if the key is set and has no line yet; no line for a dropped key of veRL's
        own configurations.
        """
        setting = self.settings.given.get(name)
        if setting is not None and name not in self.done:
            self.done[name] = []
            if setting.inherited and outcome == "dropped":
                return
            self.lines.append(ImportLine(setting.place, outcome, setting.shown, f"({why})"))

    def finish(self) -> None:
        """Handles keys without a rule by their table rows, and adds a report line for each remaining key."""
        for name, setting in self.settings.given.items():
            paths = self.done.get(name, [])
            if paths and any(isinstance(self.fields[path][0], Gap) for path in paths if path in self.fields):
                self.lines.append(self._gap_line(setting, paths))
            elif paths:
                targets = ", ".join(dict.fromkeys(show(path) for path in paths))
                note = f" ({self.notes[name]})" if name in self.notes else ""
                self.lines.append(ImportLine(setting.place, "mapped", setting.shown, f"-> {targets}{note}"))
            elif name not in self.done and not (setting.inherited and _has_no_target(name)):
                self._handle_by_table_row(name, setting)
        for position, text, why in self.settings.remarks:
            self.remark("dropped", text, f"({why})", position)
        self.lines.sort(key=lambda line: (line.place.line, line.place.column) if line.place else (1 << 30, 0))

    def _gap_line(self, setting: VerlSetting, paths: Sequence[FieldPath]) -> ImportLine:
        """Returns the report line of a key that made gaps in these fields."""
        targets = ", ".join(dict.fromkeys(show(path) for path in paths))
        why = f"({setting.unknown}) " if setting.unknown else ""
        shown = setting.written if setting.unknown else setting.shown
        return ImportLine(setting.place, "needs a person", shown, f"{why}-> a gap: {targets}")

    def _handle_by_table_row(self, name: str, setting: VerlSetting) -> None:
        """Converts, drops or reports a key without a rule, as its row in the table says."""
        row = find(name)
        if setting.unknown and (row is None or row.fate != "dropped"):
            self.remark("needs a person", setting.written, f"({setting.unknown})", setting.place)
        elif row is None:
            why = "not a known key of veRL, so it is left out"
            self.remark("unknown", setting.shown, f"({why})", setting.place)
        elif setting.value is None:
            self.remark("dropped", f"{setting.written}=null", "(null: the default holds)", setting.place)
        elif row.fate in ("rule", "person") and (why := self._neutral_reason(row, setting)):
            self.remark("dropped", setting.shown, f"({why})", setting.place)
        elif row.fate in ("field", "tree"):
            self.put(row.target, setting.value, name, note=row.note if row.fate == "tree" else "")
            # The guide only stores the key there, and the report must not suggest any further effect.
            idle = row.fate == "tree" and not (row.argument or row.read)
            note = row.note or ("kept; no engine acts on it yet" if idle else "")
            text = f"-> {row.target}" + (f" ({note})" if note else "")
            self.remark("mapped", setting.shown, text, setting.place)
        else:
            outcome: Outcome = "dropped" if row.fate == "dropped" else "needs a person"
            self.remark(outcome, setting.shown, f"({row.note or f'write {row.target}'})", setting.place)

    def _neutral_reason(self, row: VerlKey, setting: VerlSetting) -> str:
        """Returns the reason why a key without a rule needs no decision; empty if a person has to decide."""
        is_exact = row.name == canonical(setting.name)
        if (
            (is_exact and setting.value == row.default)
            or setting.value in ("", [], {})
            or not (is_exact or setting.value)
        ):
            return "veRL's default"
        if row.switch and self._is_off(row.switch):
            return f"{row.switch} is off"
        return ""

    def _is_off(self, switch: str) -> bool:
        """True if a key enabling others is known to have its default, or False."""
        row = find(switch)
        assert row is not None, switch
        setting = self.given(switch)
        unknown = switch in self.settings.given and self.settings.given[switch].unknown
        return not unknown and (setting is None or setting.value in (row.default, False))

    def text(self, heading: str) -> str:
        """Returns the experiment file as YAML with a heading, fields in the order of the schema."""
        root: dict[str | int, Any] = {}
        for path, leaf in self.fields.items():
            node = root
            for key in path[:-1]:
                node = node.setdefault(key, {})
            node[path[-1]] = leaf
        return "".join(f"{line}\n" for line in (f"# {heading}", *_yaml_lines(root, (), 0)))

    def contradict(self, name: str, problem: str, fix: str) -> None:
        """Adds an issue for keys that contradict each other and therefore cannot be imported."""
        self.wrong(name, problem, fix, Contradiction)


def _has_no_target(name: str) -> bool:
    """True for a key without a corresponding field."""
    row = find(name)
    return row is None or row.fate not in ("field", "tree")


def _yaml_lines(node: dict[str | int, Any], above: FieldPath, depth: int) -> Iterator[str]:
    """Yields the lines of a tree of fields as YAML, with comments, in the order of the schema."""
    indent = "  " * depth
    for key, child in sorted(node.items(), key=lambda pair: _rank((*above, pair[0]))):
        path = (*above, key) if isinstance(key, str) else above
        if isinstance(key, int):
            block = list(_yaml_lines(child, path, depth + 1))
            yield f"{indent}- {block[0].lstrip()}"
            yield from block[1:]
        elif isinstance(child, dict):
            yield f"{indent}{scalar(key)}:"
            # Elements of a list are indented only by the dash.
            yield from _yaml_lines(child, path, depth if next(iter(child)) in (0,) else depth + 1)
        else:
            leaf, comment = child
            shown = GAP if isinstance(leaf, Gap) else scalar(leaf)
            yield f"{indent}{scalar(key)}: {shown}" + (f"  # {one_line(comment)}" if comment else "")


_RANKS: Final = {path: rank for rank, path in enumerate(all_fields())}
"""Position of each field in the schema."""


def _rank(path: FieldPath) -> tuple[int, int]:
    """Returns the sort key of a field among its siblings: the schema's order, fields unknown to the schema last."""
    last = path[-1]
    if isinstance(last, int):
        return (0, last)
    return (_RANKS.get(tuple(key for key in path if isinstance(key, str)), len(_RANKS)), 0)
