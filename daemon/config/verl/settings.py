"""`VerlSettings` holds the keys set for veRL, with positions, by a script, a command line or a Hydra file."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from rftd.daemon.config.grammar import Call, FieldReference, GrammarError, Piece, has_interpolation, parse_interpolation
from rftd.daemon.config.issue import (
    Contradiction,
    FieldError,
    Interpolation,
    Issue,
    SyntaxIssue,
    UnknownField,
    Unsupported,
    WrongValue,
)
from rftd.daemon.config.source import SourceMap, SourcePlace
from rftd.daemon.config.verl.config_files import ConfigFiles
from rftd.daemon.config.verl.hydra import HydraProblem, read_value, read_word
from rftd.daemon.config.verl.shell.script import ShellScript, one_command
from rftd.daemon.config.verl.shell.word import ShellWord
from rftd.daemon.config.verl.table import TABLES, canonical, find, meant
from rftd.daemon.config.yaml_source import parse_yaml

_PROGRAM: Final = re.compile(r"(?:^|[./])(?:main_(?:ppo|dapo)|fully_async_main)(?:\.py)?$")
"""Name of one of veRL's programs that can be imported."""
_OTHER_PROGRAM: Final = re.compile(r"^verl\.|(?:^|[./])(?:main_\w+|\w*sft_trainer\w*)(?:\.py)?$")
"""Name of another program of veRL."""
_OVERRIDE: Final = re.compile(r"(\+\+|\+|~)?([\w./@-]+)(?:=(.*))?\Z", re.DOTALL)
"""An override: prefix, key and value."""
_CUT_OFF: Final = re.compile(r"\+{0,2}[a-z_]\w*(?:\.\w+)+=")
"""Matches a key at the position of a command."""
_OPTIONS: Final = {
    **dict.fromkeys(("--config-name", "-cn"), "name"),
    **dict.fromkeys(("--config-path", "-cp", "--config-dir", "-cd"), "folder"),
}
"""Hydra's options that name a configuration or a folder."""
_CHOOSE: Final = "choose with --assume NAME=VALUE, --take LINE or --skip LINE"
"""Advice for an undecidable script."""
_PARTS: Final[Mapping[str, Mapping[str, str]]] = {
    "megatron_actor": {"actor_rollout_ref.actor.strategy": "megatron"},
    "megatron_critic": {"critic.strategy": "megatron"},
    **{key: {} for key in ("megatron_ref", "megatron_reward_model", "megatron_reward_loop", "megatron")},
}
"""Groups of a `defaults` list selecting an engine, and the keys set by the group."""
_CHAIN: Final = 12
"""Maximum length of a chain of references or configurations."""
_MOST_CHARS: Final = 1 << 17
"""Maximum size of all texts with references, counted as often as followed: a few references could multiply without
end."""


@dataclass(frozen=True, slots=True)
class VerlSetting:
    """One key of veRL as set by the user; `candidates` are its possible values if the value is uncertain."""

    name: str
    """Name in the table's spelling."""
    written: str
    """Key as written by the user."""
    value: Any
    """Value, without references once resolved."""
    place: SourcePlace
    """Position in the script or file."""
    unknown: str = ""
    """Reason why the value is unknown; empty for a known value."""
    candidates: tuple[Any, ...] = ()
    """Possible values, as far as known from the script."""
    inherited: bool = False
    """True for a value of veRL's own configurations: reported only if converted."""

    @property
    def shown(self) -> str:
        """`key=value`, shortened for a report line."""
        text = " ".join(str(self.value).split())
        return f"{self.written}={text if len(text) <= 80 else text[:77] + '...'}"


@dataclass(slots=True)
class VerlSettings:
    """All keys set for a run of veRL, with the issues found while reading them."""

    source: SourceMap
    """Positions and lines of the script or file."""
    given: dict[str, VerlSetting] = field(default_factory=dict)
    """Settings by name, in the table's spelling."""
    issues: list[Issue] = field(default_factory=list)
    """Errors found while reading."""
    remarks: list[tuple[SourcePlace, str, str]] = field(default_factory=list)
    """Texts left out for not being keys of veRL: position, text, reason."""
    program: str = ""
    """Name of veRL's program on the command line; empty if absent."""
    files: ConfigFiles = field(default_factory=ConfigFiles)
    """Folders searched for further configurations."""
    folder: str = ""
    """Value of `--config-path`."""
    depth: int = 0
    """Number of configurations followed to this one, limited against cycles."""
    _spent: int = 0
    """Characters of all texts with references so far."""

    def wrong(self, position: SourcePlace, name: str, problem: str, fix: str | None, kind: type[FieldError]) -> None:
        """Adds an issue at the position of a key, with advice and the kind of error."""
        self.issues.append(Issue(tuple(name.split(".")) if name else (), problem, fix, kind, place=position))

    def put(
        self,
        written_name: str,
        content: Any,
        position: SourcePlace,
        *,
        added: bool = False,
        unknown: str = "",
        candidates: tuple[Any, ...] = (),
    ) -> None:
        """Sets a key after checking it against the table; of equal names, the last one counts, as in Hydra.

        `added` is True for `+key=value`; `unknown` is the reason why the value is unknown, empty for a known one.
        """
        name = canonical(written_name)
        row = find(name)
        near = meant(name)
        # A `+` deliberately adds a key unknown to veRL.
        if near is not None and not added:
            self.wrong(position, written_name, "is not a key of veRL", f"did you mean {near!r}?", UnknownField)
            return
        self.given.pop(name, None)
        self.given[name] = VerlSetting(name, written_name, content, position, unknown, candidates)
        wants = row.wrong(content) if row is not None and row.name == name and not unknown else None
        if wants:
            shown = f"{content!r}"[:80]
            self.wrong(position, written_name, f"is {shown}, but veRL expects {wants}", f"write {wants}", WrongValue)

    def override(self, word: ShellWord) -> None:
        """Adds an override of a command line: `key=value`, `+key=value`, `++key=value`, `~key`."""
        if word.unknown:
            self._add_uncertain(word)
            return
        match = _OVERRIDE.match(word.text)
        if match is None or (match[3] is None and match[1] != "~"):
            if word.text.startswith("${oc.env:"):
                self.remarks.append((word.place, word.text, "the script does not assign it: it is empty"))
            elif word.text:
                self.wrong(word.place, "", f"{word.text[:60]!r} is not an override", "write key=value", SyntaxIssue)
            return
        sign, name, text = match.groups()
        if sign == "~":
            self.given.pop(canonical(name), None)
            self.remarks.append(
                (word.place, f"~{name}", "the key is taken out of veRL's configuration: it is left out")
            )
        elif "@" in name or "/" in name:
            self.group(name, text, word.place)
        else:
            try:
                self.put(name, read_value(text), word.place, added=bool(sign))
            except HydraProblem as problem:
                self.wrong(word.place, name, problem.what, problem.fix, SyntaxIssue)

    def _add_uncertain(self, word: ShellWord) -> None:
        """Adds an override with an unknown value, or with an uncertain presence."""
        texts = [text for text in word.texts if text]
        matched = [_OVERRIDE.match(text) for text in texts or [word.text]]
        names = {match[2] for match in matched if match is not None and match[3] is not None}
        sure = bool(texts) or "=" in word.text[: word.certain_chars]
        if len(names) != 1 or not all(match is not None and match[3] is not None for match in matched) or not sure:
            problem = f"ambiguous keys: {word.unknown}"
            shown = " or ".join(repr(text[:60]) for text in texts[:4])
            fix = _CHOOSE + (f"; it may be {shown}" if shown else "")
            self.wrong(word.place, "", problem, fix, Unsupported)
            return
        name = names.pop()
        settings = [_value_or_gap(match[3]) for match in matched if match is not None] if texts else []
        before = self.given.get(canonical(name))
        unset = "" in word.texts
        if unset and before is not None and before.unknown:
            settings = [*before.candidates, *settings] if before.candidates else []
        elif unset:
            row = find(name)
            settings = [before.value if before is not None else row.default if row is not None else None, *settings]
        distinct = [setting for at, setting in enumerate(settings) if setting not in settings[:at]]
        added = any(match is not None and match[1] for match in matched)
        if len(distinct) == 1:
            self.put(name, distinct[0], word.place, added=added)
        else:
            self.put(name, None, word.place, added=added, unknown=word.unknown, candidates=tuple(distinct))

    def group(self, name: str, choice: str, position: SourcePlace) -> None:
        """Applies one choice of Hydra's: veRL's own choices are known, others are searched among the user's files."""
        word = name.removeprefix("override ").strip()
        if word == "model_engine":
            self.put(word, choice, position)
        elif choice in _PARTS:
            self.inherit(_PARTS[choice], position)
        elif choice not in TABLES.groups and not self._apply_configuration(choice, position):
            names = [*TABLES.groups, *TABLES.configurations]
            near = difflib.get_close_matches(choice, names, 1, 0.8)
            fix = f"did you mean {near[0]!r}?" if near else "name the folder that it is in by --config-dir"
            shown = f"{name} {choice}".strip()
            self.wrong(
                position, "", f"the default {shown!r} is unknown: its values are in no file here", fix, Unsupported
            )

    def _apply_configuration(self, choice: str, position: SourcePlace) -> bool:
        """Applies the values of a whole configuration; False if there is none of the name."""
        configuration = TABLES.configurations.get(choice)
        if configuration is None or self.files.names_another(self.folder):
            file = self.files.find(choice, self.folder, self.program)
            if file is not None:
                self._apply_file(*file, position)
                return True
        if configuration is not None:
            self.inherit(configuration, position)
        return configuration is not None

    def _apply_file(self, text: str, origin: str, position: SourcePlace) -> None:
        """Applies the values of a user's file, below the values already set."""
        if self.depth >= _CHAIN:
            self.wrong(position, "", f"{origin} includes itself", "break the chain of `defaults`", Contradiction)
            return
        tree, source, issues = parse_yaml(text, origin)
        self.issues += issues
        if isinstance(tree, dict):
            inner = tree_settings(tree, source, self.files, self.depth + 1)
            self.issues += inner.issues
            self.remarks += inner.remarks
            self.given = {**inner.given, **self.given}

    def inherit(self, configuration: Mapping[str, Any], position: SourcePlace) -> None:
        """Sets keys from one of veRL's own configurations, unless set otherwise."""
        for name, content in configuration.items():
            key = canonical(name)
            if key not in self.given:
                self.given[key] = VerlSetting(key, name, content, position, inherited=True)

    def resolve(self) -> None:
        """Replaces each `${...}` by the key's value; `${oc.env:...}` stays, to be resolved by the client."""
        for name in list(self.given):
            setting = self.given[name]
            resolved, why = self._resolve_references(setting.value, name, (name,))
            if why:
                self.given[name] = replace(setting, value=None, unknown=why)
                continue
            self.given[name] = replace(setting, value=resolved)
            row = find(name)
            wants = row.wrong(resolved) if row is not None and row.name == name and resolved != setting.value else None
            if wants:
                problem = f"is {setting.value}, that is {resolved!r}, but veRL expects {wants}"
                self.wrong(setting.place, setting.written, problem, None, WrongValue)

    def _resolve_references(self, content: Any, name: str, way: tuple[str, ...]) -> tuple[Any, str]:
        """Returns the value without references, and the reason if one cannot be followed."""
        if isinstance(content, list):
            pairs = [self._resolve_references(element, name, way) for element in content]
            return [element for element, _ in pairs], next((why for _, why in pairs if why), "")
        if not isinstance(content, str) or not has_interpolation(content):
            return content, ""
        self._spent += len(content)
        if self._spent > _MOST_CHARS:
            return None, "references expand to more than a file may hold"
        try:
            pieces = parse_interpolation(content)
        except GrammarError as error:
            position = self.given[way[0]].place
            self.wrong(position, way[0], f"{error}", "write ${section.key}", Interpolation)
            return None, f"{error}"
        resolved = [self._piece(piece, name, way) if not isinstance(piece, str) else (piece, "") for piece in pieces]
        why = next((reason for _, reason in resolved if reason), "")
        if why or len(resolved) == 1:
            return (None if why else resolved[0][0]), why
        return "".join(str(text) for text, _ in resolved), ""

    def _piece(self, piece: Piece, name: str, way: tuple[str, ...]) -> tuple[Any, str]:
        """Returns the value of one `${...}`, and the reason if it cannot be followed."""
        if isinstance(piece, FieldReference):
            return self._reference("".join(map(str, piece.target)), name, way)
        assert isinstance(piece, Call)
        args = ["".join(map(str, arg)) for arg in piece.args]
        if piece.resolver == "oc.env":
            return "${oc.env:" + ",".join(args) + "}", ""
        if piece.resolver == "oc.select":
            target, why = self._reference(args[0], name, way)
            return (target, why) if not why or len(args) < 2 else (read_word(args[1]), "")
        return None, f"`${{{piece.resolver}:...}}` is worked out by veRL while it runs"

    def _reference(self, text: str, name: str, way: tuple[str, ...]) -> tuple[Any, str]:
        """Returns the value of a key referred to (relative if `text` begins with dots), and the reason if it cannot be
        followed.
        """
        dots = len(text) - len(text.lstrip("."))
        parts = name.split(".")
        target = canonical(".".join([*parts[: len(parts) - dots], text[dots:]]) if dots else text)
        if target in way or len(way) > _CHAIN:
            position = self.given[way[0]].place
            loop = " -> ".join([*way, target])
            self.wrong(position, way[0], f"refers to itself: {loop}", None, Interpolation)
            return None, "it refers to itself"
        setting = self.given.get(target)
        if setting is not None:
            return (
                (None, setting.unknown)
                if setting.unknown
                else self._resolve_references(setting.value, target, (*way, target))
            )
        row = find(target)
        if row is not None and row.name == target and row.default is not None:
            return row.default, ""
        return None, f"`${{{text}}}` names a key that is not given"


def command_settings(words: Sequence[ShellWord], source: SourceMap, files: ConfigFiles | None = None) -> VerlSettings:
    """Returns the keys of one command line with veRL's program and overrides, or with overrides only."""
    settings = VerlSettings(source, files=files or ConfigFiles())
    names: list[tuple[str, SourcePlace]] = []
    program = next((at for at, word in enumerate(words) if _PROGRAM.search(word.text)), None)
    arguments = words if program is None else words[program + 1 :]
    option = ""
    settings.program = "" if program is None else words[program].text
    for word in arguments:
        if option or word.text.partition("=")[0] in _OPTIONS:
            text = word.text if option else word.text.partition("=")[2]
            kind = _OPTIONS[option or word.text.partition("=")[0]]
            if not option and "=" not in word.text:
                option = word.text
                continue
            option = ""
            if kind == "folder":
                # For an unknown folder, the end of the path may be known.
                settings.folder = text.lstrip("/") if word.unknown else text
            elif word.unknown:
                settings.wrong(word.place, "", f"an option is not known: {word.unknown}", _CHOOSE, SyntaxIssue)
            else:
                names.append((text.removesuffix(".yaml"), word.place))
        elif word.text.startswith("-"):
            settings.remarks.append((word.place, word.text, "an option of Hydra's"))
        else:
            settings.override(word)
    for name, position in names:
        settings.group("--config-name", name, position)
    return settings


def _value_or_gap(text: str) -> Any:
    """Returns a text parsed as a Hydra value; a text that is none stays as it is."""
    try:
        return read_value(text)
    except HydraProblem:
        return text


def script_settings(script: ShellScript, source: SourceMap, files: ConfigFiles | None = None) -> VerlSettings:
    """Returns the keys of the script's one command running veRL; an issue if there is none, or more than one."""
    commands = script.commands
    verl_commands = [words for words in commands if any(_PROGRAM.search(word.text) for word in words)]
    settings = VerlSettings(source)
    if not verl_commands:
        other_programs = [word for words in commands for word in words if _OTHER_PROGRAM.search(word.text)]
        problem = "no command runs verl.trainer.main_ppo"
        if other_programs:
            problem = (
                f"{other_programs[0].text} is another program of veRL: PPO and its kin are imported, from main_ppo"
            )
        position = other_programs[0].place if other_programs else SourcePlace(source.origin)
        settings.wrong(
            position, "", problem, "give a script with `python3 -m verl.trainer.main_ppo key=value ...`", SyntaxIssue
        )
    elif len({words[0].place for words in verl_commands}) > 1:
        second = next(words for words in verl_commands if words[0].place != verl_commands[0][0].place)
        fix = "keep one of them, or choose a branch with --take LINE or --skip LINE"
        settings.wrong(second[0].place, "", "a second command runs veRL here", fix, Contradiction)
    elif cut := next((words[0] for words in commands if _CUT_OFF.match(words[0].text)), None):
        problem = (
            f"{cut.text.partition('=')[0]} is not part of veRL's command: a comment or an empty line above ends it"
        )
        settings.wrong(cut.place, "", problem, "move the comment to another line", SyntaxIssue)
    else:
        settings = command_settings(
            one_command(verl_commands), source, replace(files or ConfigFiles(), written=script.files)
        )
        for word, position in script.passed_over.items():
            if canonical(word.partition("=")[0].lstrip("+")) not in settings.given:
                settings.remarks.append((position, word, "the script decides against this branch"))
    return settings


def tree_settings(
    tree: Mapping[str, Any], source: SourceMap, files: ConfigFiles | None = None, depth: int = 0
) -> VerlSettings:
    """Returns the keys of a Hydra file. `defaults` may name further configurations; an unknown configuration is an
    issue.
    """
    settings = VerlSettings(source, files=files or ConfigFiles(), depth=depth)
    for index, default in enumerate(_as_list(tree.get("defaults"))):
        position = source.locate(("defaults", index)) or SourcePlace(source.origin)
        pairs = default.items() if isinstance(default, Mapping) else [("", default)]
        for name, choice in pairs:
            if str(name).startswith("override hydra/") or choice is None:
                continue
            settings.group(str(name), str(choice).removesuffix(".yaml"), position)
    _flatten({key: child for key, child in tree.items() if key not in ("defaults", "hydra")}, (), settings)
    return settings


def _as_list(node: Any) -> list[Any]:
    """Returns a list: the node itself, or the node as its only element; empty for None."""
    return node if isinstance(node, list) else [] if node is None else [node]


def _flatten(node: Mapping[str, Any], above: tuple[str, ...], settings: VerlSettings) -> None:
    """Sets a key for each leaf of a tree."""
    for key, child in node.items():
        path = (*above, str(key))
        if str(key) == "_target_" or child == {}:
            continue
        if isinstance(child, Mapping):
            _flatten(child, path, settings)
        else:
            position = settings.source.locate(path) or SourcePlace(settings.source.origin)
            settings.put(".".join(path), None if child in ("???", "None") else child, position)
