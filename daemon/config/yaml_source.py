"""`parse_yaml` reads the text of an experiment file as plain data, with the position of every field.

Built from parser events: no class named by the file is constructed, nesting never reaches the interpreter's stack, and
an alias counts as much as its expansion.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.grammar import read_scalar
from rftd.daemon.config.issue import ConfigErrors, Issue, LimitIssue, SyntaxIssue, report
from rftd.daemon.config.source import SourceMap, SourcePlace
from rftd.ops import limits

# libyaml's parser where PyYAML was built with it, for speed; only its events are used, never its constructors.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's parser where available."""
_TEXT_TAGS: Final = frozenset({"!", "tag:yaml.org,2002:str"})
"""Tags of texts."""
_TYPED_TAGS: Final = frozenset(f"tag:yaml.org,2002:{name}" for name in ("int", "float", "bool", "null"))
"""Tags of numbers, booleans and null."""
_CONTAINER_TAGS: Final = frozenset({None, "!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"})
"""Tags of mappings and lists."""
_MERGE: Final = "<<"
"""Key that merges another mapping."""
_OPENED: Final = ("quoted scalar", "flow mapping", "flow sequence")
"""Contexts of the parser opened by a quote or a bracket."""


class _Missing:
    """Type of `_MISSING`."""

    pass


_MISSING: Final = _Missing()
"""Stands for a key or root not read yet."""


@dataclass(slots=True)
class _Frame:
    """A mapping or list under construction."""

    value: dict[Any, Any] | list[Any]
    """Content so far."""
    path: FieldPath
    """Path of the field."""
    place: SourcePlace
    """Position of the beginning."""
    anchor: str | None
    """Name of the anchor; None without one."""
    first_node: int
    """Number of values read so far, the mapping or list itself included."""
    key: Any = _MISSING
    """Key waiting for its value."""
    key_place: SourcePlace | None = None
    """Position of the key."""
    merged: list[dict[Any, Any]] = field(default_factory=list)
    """Mappings merged by `<<`."""
    deepest: int = 1
    """Number of nested levels."""


@dataclass(slots=True)
class _Anchor:
    """Content that aliases repeat."""

    value: Any
    """The content."""
    nodes: int
    """Number of values in the content."""
    depth: int
    """Number of nested levels of the content."""


class _Builder:
    """Builds data, positions and issues from parser events."""

    def __init__(self, source: SourceMap) -> None:
        self.source = source
        self.issues: list[Issue] = []
        self.root: Any = _MISSING
        self._frames: list[_Frame] = []
        self._anchors: dict[str, _Anchor] = {}
        self._nodes = 0
        self._aliases = 0
        self._documents = 0
        self.quoted: SourcePlace | None = None
        """Position of the latest quoted text spanning several lines."""

    def take(self, event: Any) -> None:
        """Adds one parser event; raises ConfigErrors over a limit."""
        position = self._position(event)
        if isinstance(event, yaml.ScalarEvent):
            self._count(1, position)
            value = self._scalar(event, position)
            if event.style in ("'", '"') and position.end_line > position.line:
                self.quoted = position
            if event.anchor:
                self._anchors[event.anchor] = _Anchor(value, 1, 0)
            self._add(value, position, depth=0)
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            self._open(event, position)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            self._close()
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event, position)
        elif isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                self._fail("a second document begins here", position, fix="keep one document: remove the line `---`")

    def _open(self, event: Any, position: SourcePlace) -> None:
        """Begins a mapping or a list."""
        self._count(1, position)
        if event.tag not in _CONTAINER_TAGS:
            self._refuse_tag(event.tag, position)
        if len(self._frames) >= limits.CONFIG_DEPTH:
            self._limit(f"nested deeper than {limits.CONFIG_DEPTH} levels", position)
        value: dict[Any, Any] | list[Any] = {} if isinstance(event, yaml.MappingStartEvent) else []
        self._frames.append(_Frame(value, self._next_path(), position, event.anchor, self._nodes))

    def _close(self) -> None:
        """Ends a mapping or a list, and adds it to its parent."""
        frame = self._frames.pop()
        # `<<` gives way to keys written in the mapping, at any position, and the first of several merged mappings wins.
        for extra in frame.merged:
            assert isinstance(frame.value, dict)
            for key, value in extra.items():
                frame.value.setdefault(key, value)
        if frame.anchor:
            self._anchors[frame.anchor] = _Anchor(frame.value, self._nodes - frame.first_node + 1, frame.deepest)
        self._add(frame.value, frame.place, depth=frame.deepest)

    def _alias(self, event: Any, position: SourcePlace) -> None:
        """Adds the content of an alias's anchor."""
        self._aliases += 1
        if self._aliases > limits.CONFIG_ALIASES:
            self._limit(f"more than {limits.CONFIG_ALIASES} aliases (`*name`)", position)
        anchor = self._anchors.get(event.anchor)
        if anchor is None:
            self._fail(f"`*{event.anchor}` names no anchor above it", position)
            return
        # An alias costs as much as its expansion: ten anchors of ten aliases each would be 10^10 values.
        self._count(anchor.nodes, position)
        if len(self._frames) + anchor.depth > limits.CONFIG_DEPTH:
            self._limit(f"nested deeper than {limits.CONFIG_DEPTH} levels", position)
        # Copied, because an override or the resolution of a `${...}` at one position must not change another.
        self._add(copy.deepcopy(anchor.value), position, depth=anchor.depth)

    def _add(self, value: Any, position: SourcePlace, *, depth: int) -> None:
        """Adds a value to the mapping or list under construction."""
        if not self._frames:
            self.root = value
            self.source.values[()] = position
            return
        frame = self._frames[-1]
        frame.deepest = max(frame.deepest, depth + 1)
        if isinstance(frame.value, list):
            self.source.values[(*frame.path, len(frame.value))] = position
            frame.value.append(value)
        elif isinstance(frame.key, _Missing):
            frame.key = value
            frame.key_place = position
        else:
            self._add_pair(frame, value, position)

    def _add_pair(self, frame: _Frame, value: Any, position: SourcePlace) -> None:
        """Adds a key with its value; a duplicate key is an issue."""
        assert isinstance(frame.value, dict)
        key = frame.key
        key_place = frame.key_place or position
        frame.key = _MISSING
        # YAML 1.1 has merge keys; with a scalar value `<<` is a key like any other.
        if key == _MERGE and isinstance(value, dict | list):
            mappings = value if isinstance(value, list) else [value]
            frame.merged += [mapping for mapping in mappings if isinstance(mapping, dict)]
            return
        if not isinstance(key, str):
            key = self._key_text(key, key_place)
        path = (*frame.path, key)
        if key in frame.value:
            # PyYAML silently keeps the last of two equal keys; the user's intention is unknown.
            first = self.source.keys.get(path)
            where = f", first on line {first.line}" if first else ""
            self.issues.append(
                Issue(path, f"the key appears twice{where}", "remove one of the two", SyntaxIssue, place=key_place)
            )
            return
        frame.value[key] = value
        self.source.keys[path] = key_place
        self.source.values[path] = position

    def _key_text(self, key: Any, position: SourcePlace) -> str:
        """Returns the text of a key as written by the user, also of `1:` or `on:`, because keys are names."""
        if isinstance(key, Hashable) and position.line and position.end_line == position.line:
            # Read from the file, not from str(value): `on` was parsed as True, but the user wrote `on`.
            line = self.source.lines[position.line - 1] if position.line <= len(self.source.lines) else ""
            return line[position.column - 1 : position.end_column - 1].strip("'\" ") or str(key)
        self.issues.append(Issue((), "a key must be a word", None, SyntaxIssue, place=position))
        return str(key)[:40]

    def _scalar(self, event: Any, position: SourcePlace) -> Any:
        """Returns the value of a scalar: text, or a plain word by YAML's rules."""
        tag = event.tag
        if tag in _TYPED_TAGS or (tag is None and event.implicit[0]):
            return read_scalar(event.value)
        if tag is not None and tag not in _TEXT_TAGS:
            self._refuse_tag(tag, position)
        return event.value

    def _next_path(self) -> FieldPath:
        """Returns the path of the next value."""
        if not self._frames:
            return ()
        frame = self._frames[-1]
        if isinstance(frame.value, list):
            return (*frame.path, len(frame.value))
        return frame.path if isinstance(frame.key, _Missing) else (*frame.path, str(frame.key)[:80])

    def _position(self, event: Any) -> SourcePlace:
        """Returns the range of an event in the file."""
        start = event.start_mark
        end = event.end_mark
        return SourcePlace(self.source.origin, start.line + 1, start.column + 1, end.line + 1, end.column + 1)

    def _count(self, nodes: int, position: SourcePlace) -> None:
        """Counts values against the limit. Raises ConfigErrors."""
        self._nodes += nodes
        if self._nodes > limits.CONFIG_NODES:
            self._limit(f"more than {limits.CONFIG_NODES:,} values, aliases expanded", position)

    def _refuse_tag(self, tag: str, position: SourcePlace) -> None:
        """Adds an issue for a tag that is not allowed."""
        self.issues.append(
            Issue(
                (),
                f"the tag {tag[:80]!r} is not allowed",
                "remove it; only plain data is read",
                SyntaxIssue,
                place=position,
            )
        )

    def _limit(self, problem: str, position: SourcePlace) -> None:
        """Raises ConfigErrors for an exceeded limit."""
        self.issues.append(Issue((), problem, "make the file smaller", LimitIssue, place=position))
        raise report(self.issues, self.source)

    def _fail(self, problem: str, position: SourcePlace, fix: str | None = None) -> None:
        """Raises ConfigErrors for an error of syntax."""
        self.issues.append(Issue((), problem, fix, SyntaxIssue, place=position))
        raise report(self.issues, self.source)


def parse_yaml(text: str, origin: str) -> tuple[Any, SourceMap, list[Issue]]:
    """Parses YAML; returns the data (None if empty), the positions of all fields, and issues such as duplicate keys.

    Raises ConfigErrors if the text is not YAML or exceeds a limit.
    """
    source = SourceMap(origin, text.splitlines())
    # surrogatepass: invalid UTF-8 is reported by the parser, and measuring must not raise before.
    if len(text.encode("utf-8", "surrogatepass")) > limits.CONFIG_SIZE_BYTES:
        problem = f"larger than {limits.CONFIG_SIZE_BYTES:,} bytes"
        raise report([Issue((), problem, "an experiment file holds settings, not data", LimitIssue)], source)
    builder = _Builder(source)
    try:
        for event in _events(text):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, source, builder.quoted) from None
    except (yaml.YAMLError, UnicodeError, ValueError) as error:
        problem = f"not readable as YAML: {str(error).splitlines()[0][:160]}"
        raise report([Issue((), problem, "save it as UTF-8 text", SyntaxIssue)], source) from None
    root = None if isinstance(builder.root, _Missing) else builder.root
    return root, source, builder.issues


def _events(text: str) -> Iterator[Any]:
    """Returns the parser's events of a text."""
    return iter(yaml.parse(text, Loader=_LOADER))


def _syntax_error(error: yaml.MarkedYAMLError, source: SourceMap, quoted: SourcePlace | None) -> ConfigErrors:
    """Returns the parser's error with position and advice."""
    mark = error.problem_mark or error.context_mark
    position = SourcePlace(source.origin, mark.line + 1, mark.column + 1) if mark else None
    problem = f"not valid YAML: {error.problem or 'syntax error'}"
    if error.context:
        problem += f" ({error.context})"
    fix = "check the indentation, quotes and brackets up to here"
    if "\t" in (source.lines[mark.line] if mark and mark.line < len(source.lines) else ""):
        fix = "indent with spaces, not tabs"
    opened = error.context_mark if error.context and any(word in error.context for word in _OPENED) else None
    if position is not None and quoted is not None and quoted.end_line == position.line:
        # The text extended to the next quote of the file, and the remainder is not YAML.
        problem = f"not valid YAML: the quote that opens here ends on line {quoted.end_line} only"
        position = SourcePlace(source.origin, quoted.line, quoted.column)
        fix = "close it where its text ends"
    elif position is not None and opened is not None:
        noun = "quote" if "quoted" in str(error.context) else "bracket"
        problem = f"not valid YAML: the {noun} that opens here is not closed (noticed on line {position.line})"
        position = SourcePlace(source.origin, opened.line + 1, opened.column + 1)
        fix = "close it where its text ends" if noun == "quote" else "close it, or check the commas and quotes within"
    return report([Issue((), problem, fix, SyntaxIssue, place=position)], source)
