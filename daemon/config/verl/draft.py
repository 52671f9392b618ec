"""`ExperimentDraft` is the experiment file under construction: fields with their origins, and a line for each key."""

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


_MOST_SHOWN: Final = 8
"""Values that a comment names for one field."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Stands for a value that nobody has given yet: `???` in the file."""


@dataclass(frozen=True, slots=True)
class ImportLine:
    """The fate of one key."""

    place: SourcePlace | None
    outcome: Outcome
    key: str
    text: str

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place else ""
        return f"{where}{self.outcome}: {self.key}{' ' if self.text else ''}{self.text}"


@dataclass(slots=True)
class ExperimentDraft:
    """Fields by path; each key of the settings is accounted for once."""

    settings: VerlSettings
    fields: dict[FieldPath, tuple[Any, str]] = field(default_factory=dict)
    lines: list[ImportLine] = field(default_factory=list)
    done: dict[str, list[FieldPath]] = field(default_factory=dict)
    working: Mapping[str, Any] = field(default_factory=dict)
    """Values that the rules go on with for keys that are not known; fields that follow from one become gaps."""
    wanted: dict[str, str] = field(default_factory=dict)
    """Keys from which something is worked out and whose value is a variable, with the reason."""
    notes: dict[str, str] = field(default_factory=dict)
    """A note of the report on one key, beside the fields set from the key."""

    def given(self, name: str) -> VerlSetting | None:
        """The key if it was given and is not null; what is not known has its working value."""
        setting = self.settings.given.get(name)
        if setting is not None and setting.unknown:
            setting = replace(setting, value=self.working.get(name))
        return None if setting is None or setting.value is None else setting

    def value(self, name: str) -> Any:
        """The value that veRL would take: the given one, or its default."""
        setting = self.given(name)
        if setting is not None:
            return setting.value
        row = find(name)
        assert row is not None, name
        return row.default

    def number(self, name: str) -> int:
        """A whole number that others are worked out of."""
        value = self.value(name)
        if isinstance(value, int):
            return value
        self.wanted[name] = f"it is {value}, which the script does not assign"
        return 1

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self.value(name)
        if isinstance(value, str):
            self.wanted[name] = f"it is {value}, which the script does not assign"
            return False
        return bool(value)

    def gap(self, target: str, *names: str, note: str = "", candidates: Sequence[Any] = ()) -> None:
        """Makes a gap of a field, which somebody has to fill because of these keys."""
        path = parse(target)
        assert path is not None, target
        shown = " or ".join(scalar(value) for value in candidates[:_MOST_SHOWN])
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

    def wrong(self, name: str, what: str, fix: str | None, kind: type[FieldError] = WrongValue) -> None:
        """Notes a key that cannot be imported."""
        setting = self.settings.given.get(name)
        place = setting.place if setting is not None else SourcePlace(self.settings.source.origin)
        self.settings.wrong(place, setting.written if setting is not None else name, what, fix, kind)

    def put(self, target: str, value: Any, *names: str, note: str = "", brief: bool = False) -> None:
        """Sets a field, which these keys are the origin of; `brief`: the comment names them without their values."""
        path = parse(target)
        assert path is not None, target
        origins = []
        for name in names:
            setting = self.given(name)
            if setting is None:
                origins.append(f"veRL's default of {name}")
                continue
            origins.append(setting.written if brief or setting.value == value else setting.shown)
            self.done.setdefault(name, []).append(path)
            if note and not brief:
                self.notes[name] = note
        comment = ", ".join(origins)
        self.fields[path] = (value, f"{comment}: {note}" if note and comment else comment or note)

    def put_given(self, target: str, name: str, *, note: str = "") -> None:
        """Sets a field to the key's value, if it was given."""
        setting = self.given(name)
        if setting is not None:
            self.put(target, setting.value, name, note=note)

    def drop(self, name: str, why: str) -> None:
        """Says why a key is left out, if it was given."""
        self._say(name, "dropped", why)

    def ask(self, name: str, why: str) -> None:
        """Says what somebody has to decide about a key, if it was given, and not as null."""
        setting = self.settings.given.get(name)
        if setting is not None and (setting.value is not None or setting.unknown):
            self._say(name, "needs a person", why)

    def remark(self, outcome: Outcome, key: str, text: str, place: SourcePlace | None = None) -> None:
        """Adds a line of the report that is no key's own."""
        self.lines.append(ImportLine(place, outcome, key, text))

    def _say(self, name: str, outcome: Outcome, why: str) -> None:
        setting = self.settings.given.get(name)
        if setting is not None and name not in self.done:
            self.done[name] = []
            if setting.inherited and outcome == "dropped":
                return
            self.lines.append(ImportLine(setting.place, outcome, setting.shown, f"({why})"))

    def finish(self) -> None:
        """Takes the keys that no rule has taken by their rows, and says what became of every other one."""
        for name, setting in self.settings.given.items():
            paths = self.done.get(name, [])
            if paths and any(isinstance(self.fields[path][0], Gap) for path in paths if path in self.fields):
                self.lines.append(self._gap_line(setting, paths))
            elif paths:
                targets = ", ".join(dict.fromkeys(show(path) for path in paths))
                note = f" ({self.notes[name]})" if name in self.notes else ""
                self.lines.append(ImportLine(setting.place, "mapped", setting.shown, f"-> {targets}{note}"))
            elif name not in self.done and not (setting.inherited and _says_nothing(name)):
                self._by_row(name, setting)
        for place, text, why in self.settings.remarks:
            self.remark("dropped", text, f"({why})", place)
        self.lines.sort(key=lambda line: (line.place.line, line.place.column) if line.place else (1 << 30, 0))

    def _gap_line(self, setting: VerlSetting, paths: Sequence[FieldPath]) -> ImportLine:
        targets = ", ".join(dict.fromkeys(show(path) for path in paths))
        why = f"({setting.unknown}) " if setting.unknown else ""
        shown = setting.written if setting.unknown else setting.shown
        return ImportLine(setting.place, "needs a person", shown, f"{why}-> a gap: {targets}")

    def _by_row(self, name: str, setting: VerlSetting) -> None:
        row = find(name)
        if setting.unknown and (row is None or row.fate != "dropped"):
            self.remark("needs a person", setting.written, f"({setting.unknown})", setting.place)
        elif row is None:
            why = "veRL has no such key that is known here: nothing takes it"
            self.remark("unknown", setting.shown, f"({why})", setting.place)
        elif setting.value is None:
            self.remark("dropped", f"{setting.written}=null", "(null: the default holds)", setting.place)
        elif row.fate in ("rule", "person") and (why := self._asks_nothing(row, setting)):
            self.remark("dropped", setting.shown, f"({why})", setting.place)
        elif row.fate in ("field", "tree"):
            self.put(row.target, setting.value, name, note=row.note if row.fate == "tree" else "")
            # What the guide keeps there is kept, and nobody shall think that it does more than that.
            idle = row.fate == "tree" and not (row.argument or row.read)
            note = row.note or ("kept; no engine acts on it yet" if idle else "")
            text = f"-> {row.target}" + (f" ({note})" if note else "")
            self.remark("mapped", setting.shown, text, setting.place)
        else:
            outcome: Outcome = "dropped" if row.fate == "dropped" else "needs a person"
            self.remark(outcome, setting.shown, f"({row.note or f'write {row.target}'})", setting.place)

    def _asks_nothing(self, row: VerlKey, setting: VerlSetting) -> str:
        """The reason why a key that no rule has taken needs nobody; empty if somebody has to decide about it."""
        own = row.name == canonical(setting.name)
        if (own and setting.value == row.default) or setting.value in ("", [], {}) or not (own or setting.value):
            return "veRL's default"
        if row.switch and self._is_off(row.switch):
            return f"{row.switch} is off"
        return ""

    def _is_off(self, switch: str) -> bool:
        row = find(switch)
        assert row is not None, switch
        setting = self.given(switch)
        unknown = switch in self.settings.given and self.settings.given[switch].unknown
        return not unknown and (setting is None or setting.value in (row.default, False))

    def text(self, heading: str) -> str:
        """The experiment file."""
        root: dict[str | int, Any] = {}
        for path, leaf in self.fields.items():
            node = root
            for part in path[:-1]:
                node = node.setdefault(part, {})
            node[path[-1]] = leaf
        return "".join(f"{line}\n" for line in (f"# {heading}", *_lines(root, (), 0)))

    def contradict(self, name: str, what: str, fix: str) -> None:
        """Notes keys that cannot hold together."""
        self.wrong(name, what, fix, Contradiction)


def _says_nothing(name: str) -> bool:
    """True of a key of which nothing is made."""
    row = find(name)
    return row is None or row.fate not in ("field", "tree")


def _lines(node: dict[str | int, Any], above: FieldPath, depth: int) -> Iterator[str]:
    indent = "  " * depth
    for key, child in sorted(node.items(), key=lambda pair: _rank((*above, pair[0]))):
        path = (*above, key) if isinstance(key, str) else above
        if isinstance(key, int):
            block = list(_lines(child, path, depth + 1))
            yield f"{indent}- {block[0].lstrip()}"
            yield from block[1:]
        elif isinstance(child, dict):
            yield f"{indent}{scalar(key)}:"
            # Items of a list are indented by their dash alone.
            yield from _lines(child, path, depth if next(iter(child)) in (0,) else depth + 1)
        else:
            value, comment = child
            shown = GAP if isinstance(value, Gap) else scalar(value)
            yield f"{indent}{scalar(key)}: {shown}" + (f"  # {one_line(comment)}" if comment else "")


_RANKS: Final = {path: rank for rank, path in enumerate(all_fields())}


def _rank(path: FieldPath) -> tuple[int, int]:
    """The place of a field among those beside it: that of the schema; what the schema does not know stays behind."""
    last = path[-1]
    if isinstance(last, int):
        return (0, last)
    return (_RANKS.get(tuple(part for part in path if isinstance(part, str)), len(_RANKS)), 0)
