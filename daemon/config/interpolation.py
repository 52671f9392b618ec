"""`resolve_interpolations` replaces each `${...}` on the client: variables, decoding, references to other fields."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final

from rftd.daemon.config import client_side, normalise
from rftd.daemon.config.field_path import FieldPath, parse, show
from rftd.daemon.config.grammar import (
    Call,
    EnvText,
    FieldReference,
    GrammarError,
    Piece,
    escape,
    has_interpolation,
    parse_interpolation,
    read_scalar,
)
from rftd.daemon.config.issue import ConfigErrors, Interpolation, Issue, SecretIssue
from rftd.daemon.config.source import SourceMap
from rftd.daemon.config.yaml_source import parse_yaml
from rftd.ops import limits
from rftd.ops.redaction import has_url_credentials, is_plain_variable, is_secret_field

_FOLDERS: Final = ("PWD", "OLDPWD")
"""Shell variables with names similar to passwords, but holding folders."""
_CHAIN: Final = 12
"""Maximum number of chained references; together with CONFIG_DEPTH this bounds the stack."""


class _Unresolvable(Exception):
    """Raised with the issue of an unresolvable field."""

    def __init__(self, issue: Issue) -> None:
        super().__init__(issue.what)
        self.issue = issue


class _Dependent(Exception):
    """Raised for a field depending on a field already reported."""


class _TooLarge(Exception):
    """Raised if references expand beyond the limits of a file."""


class _Failed:
    """Marks the value of a field that could not be resolved."""


_FAILED: Final = _Failed()
"""Value of a field that could not be resolved."""


class _Resolver:
    """Resolver of one tree's interpolations, with the issues and the fields resolved so far."""

    def __init__(self, tree: dict[str, Any], source: SourceMap, environ: Mapping[str, str]) -> None:
        self.tree = tree
        self.source = source
        self.environ = environ
        self.issues: list[Issue] = []
        self.failed: set[FieldPath] = set()
        self._done: dict[FieldPath, Any] = {}
        self._under_way: list[FieldPath] = []
        self._nodes = 0
        self._chars = 0

    def resolve(self, node: Any, path: FieldPath) -> Any:
        """Returns `node` with every interpolation in it replaced; fields that failed are missing."""
        self._spend(node)
        if isinstance(node, dict):
            pairs = {key: self.resolve(value, (*path, key)) for key, value in node.items()}
            return {key: value for key, value in pairs.items() if value is not _FAILED}
        if isinstance(node, list):
            nodes = [self.resolve(value, (*path, index)) for index, value in enumerate(node)]
            return [None if resolved is _FAILED else resolved for resolved in nodes]
        if isinstance(node, str) and has_interpolation(node):
            return self._field(node, path)
        return node

    def _field(self, text: str, path: FieldPath) -> Any:
        """Returns the value of a field's text, resolved and reported once; `_FAILED` if impossible, with an issue
        unless a field referred to failed. Raises _Unresolvable in a loop of references.
        """
        # The walk and references may both reach a field; the field is resolved, and reported, once.
        if path in self.failed:
            return _FAILED
        if path in self._done:
            return self._done[path]
        if path in self._under_way:
            loop = " -> ".join(show(step) for step in [*self._under_way[self._under_way.index(path) :], path])
            raise _Unresolvable(Issue(path, f"refers to itself: {loop}", "write one of them out", Interpolation))
        if len(self._under_way) >= _CHAIN:
            raise _Unresolvable(Issue(path, f"more than {_CHAIN} references follow one another", None, Interpolation))
        self._under_way.append(path)
        try:
            pieces = parse_interpolation(text)
            value = self._secret(pieces, path) if client_side.is_secret_path(path) else self._value(pieces, path)
        except GrammarError as error:
            return self._fail(
                Issue(
                    path,
                    f"{error}",
                    "write ${oc.env:NAME,default} or ${section.field}; \\${ where it is meant as text",
                    Interpolation,
                )
            )
        except _Dependent:
            self.failed.add(path)
            return _FAILED
        except _Unresolvable as error:
            # A loop is reported at the field where it was entered; the fields between fail silently with it.
            if error.issue.path != path and len(self._under_way) > 1 and error.issue.path in self._under_way:
                self.failed.add(path)
                raise
            return self._fail(error.issue)
        finally:
            self._under_way.pop()
        self._done[path] = value
        return value

    def _fail(self, issue: Issue) -> _Failed:
        """Records the issue of a field, masks a secret in excerpts, and returns `_FAILED`."""
        self.failed.add(issue.path)
        self.issues.append(issue)
        if issue.kind is SecretIssue:
            self.source.cover(issue.path)
        return _FAILED

    def _value(self, pieces: tuple[Piece, ...], path: FieldPath) -> Any:
        """Returns the value of a text in pieces; a single interpolation keeps its type."""
        if len(pieces) == 1 and not isinstance(pieces[0], str):
            value = self._piece(pieces[0], path)
            name = self._env_name(pieces[0], path)
            if name and isinstance(value, str) and has_url_credentials(value):
                return client_side.env_reference(name)
            return value
        text = self._text(pieces, path)
        # A composed text would hide which part is the secret, so no reference could replace the text.
        if has_url_credentials(text):
            raise _Unresolvable(client_side.refusal(path, "a URL with a password must not be composed in the file"))
        return text

    def _text(self, pieces: tuple[Piece, ...], path: FieldPath) -> str:
        """Returns pieces as one text. Raises _Unresolvable, _Dependent."""
        parts: list[str] = []
        for piece in pieces:
            value = piece if isinstance(piece, str) else self._piece(piece, path)
            if value is _FAILED:
                raise _Dependent
            if isinstance(value, dict | list):
                raise _Unresolvable(Issue(path, "a section cannot stand inside a text", None, Interpolation))
            parts.append("null" if value is None else str(value))
        text = "".join(parts)
        self._spend(text)
        return text

    def _piece(self, piece: FieldReference | Call, path: FieldPath) -> Any:
        """Returns the value of one interpolation. Raises _Unresolvable for an unsupported resolver."""
        if isinstance(piece, FieldReference):
            return self._reference(self._text(piece.target, path), path)
        if piece.resolver == "oc.env":
            return self._env(piece, path)
        if piece.resolver == "oc.decode" and len(piece.args) == 1:
            return self._decode(self._text(piece.args[0], path), path)
        resolvers = "oc.env (${oc.env:NAME,default}) and oc.decode (${oc.decode:${oc.env:NAME}})"
        raise _Unresolvable(
            Issue(
                path,
                f"`${{{piece.resolver}:...}}` is not a supported resolver",
                f"there are {resolvers}",
                Interpolation,
            )
        )

    def _env(self, call: Call, path: FieldPath) -> Any:
        """Returns a variable's text, or the default. Raises _Unresolvable for a secret or a missing variable."""
        name = self._text(call.args[0], path)
        if not client_side.ENV_NAME.fullmatch(name) or len(call.args) > 2:
            raise _Unresolvable(
                Issue(path, f"`oc.env` needs a name and an optional default, not {name[:40]!r}", None, Interpolation)
            )
        # The variable's name decides: `${oc.env:WANDB_API_KEY}` in an ordinary field would leave the client as plain
        # text.
        if name not in _FOLDERS and is_secret_field(name):
            problem = f"{name} holds a secret, and {path[-1]} would leave this machine as a value"
            raise _Unresolvable(Issue(path, problem, "only secret fields (api_key, ...) may name it", Interpolation))
        if name in self.environ:
            self.source.variables[path] = name
            return EnvText(self.environ[name])
        if len(call.args) == 1:
            problem = f"the environment variable {name} is not set"
            fix = f"export {name}=..., or give a default: ${{oc.env:{name},default}}"
            raise _Unresolvable(Issue(path, problem, fix, Interpolation))
        default = self._text(call.args[1], path)
        # OmegaConf's default `null` means null, not text.
        return None if default == "null" else EnvText(default)

    def _decode(self, text: str, path: FieldPath) -> Any:
        """Returns a text parsed as YAML. Raises _Unresolvable."""
        if text[:1] not in ("[", "{"):
            return read_scalar(text)
        try:
            value, _, issues = parse_yaml(text, show(path))
        except ConfigErrors:
            issues = [Issue(path, "")]
            value = None
        if issues:
            raise _Unresolvable(Issue(path, "`oc.decode` was given no readable value", None, Interpolation))
        self._spend(value)
        return value

    def _secret(self, pieces: tuple[Piece, ...], path: FieldPath) -> Any:
        """Returns the environment reference to store instead of a secret."""
        piece = pieces[0]
        if len(pieces) == 1 and isinstance(piece, Call) and piece.resolver == "oc.decode" and len(piece.args) == 1:
            return self._secret(piece.args[0], path)
        name = self._env_name(piece, path) if len(pieces) == 1 else None
        if name and isinstance(piece, Call):
            default = (
                "".join(fragment for fragment in piece.args[1] if isinstance(fragment, str))
                if len(piece.args) > 1
                else ""
            )
            plain = len(piece.args) < 2 or all(isinstance(fragment, str) for fragment in piece.args[1])
            renamed = client_side.is_env_variable(path) and name != path[-1] and self._is_open(pieces, path)
            if plain and (client_side.is_no_secret(default) or default == "null") and not renamed:
                return client_side.env_reference(name)
        if len(pieces) == 1 and isinstance(piece, FieldReference):
            target = self._target(self._text(piece.target, path), path)
            if client_side.is_secret_path(target):
                return self._reference_to(target, path)
        if client_side.is_env_variable(path) and self._is_open(pieces, path):
            # The resolved value is checked again by `withhold_secrets`, like a literal.
            return self._value(pieces, path)
        raise _Unresolvable(client_side.refusal(path, "a secret must be one environment variable, without a default"))

    def _is_open(self, pieces: tuple[Piece, ...], path: FieldPath) -> bool:
        """True if neither the variable set nor any variable read is a secret, by name or by value."""
        if not is_plain_variable(str(path[-1]), ""):
            return False
        for piece in pieces:
            if isinstance(piece, FieldReference):
                if client_side.is_secret_path(self._target(self._text(piece.target, path), path)):
                    return False
            elif isinstance(piece, Call):
                named = piece.resolver == "oc.env"
                name = self._text(piece.args[0], path) if named else ""
                # Composed with other text, a value resembling a key could no longer be recognised.
                if named and not is_plain_variable(name, self.environ.get(name, "")):
                    return False
                if not all(self._is_open(argument, path) for argument in piece.args[named:]):
                    return False
        return True

    def _env_name(self, piece: Piece, path: FieldPath) -> str | None:
        """Returns the variable named by an interpolation; None for another one."""
        if not isinstance(piece, Call) or piece.resolver != "oc.env":
            return None
        name = self._text(piece.args[0], path)
        return name if client_side.ENV_NAME.fullmatch(name) else None

    def _reference(self, text: str, path: FieldPath) -> Any:
        """Returns the value of the field referred to. Raises _Unresolvable for a secret."""
        target = self._target(text, path)
        if client_side.is_secret_path(target):
            problem = f"{show(target)} is a secret, and {path[-1]} would leave this machine as a value"
            raise _Unresolvable(Issue(path, problem, None, Interpolation))
        return self._reference_to(target, path)

    def _target(self, text: str, path: FieldPath) -> FieldPath:
        """Returns the current name of the field referred to by `text`."""
        dots = len(text) - len(text.lstrip("."))
        parsed = parse(text[dots:])
        written_path = self.source.written(path)
        if parsed is None or dots > len(written_path):
            raise _Unresolvable(Issue(path, f"`${{{text[:80]}}}` names no field", None, Interpolation))
        # Dots count from the section where the user wrote the field, possibly in the older spelling.
        absolute = (*written_path[: len(written_path) - dots], *parsed) if dots else parsed
        return normalise.current_name(absolute)

    def _reference_to(self, target: FieldPath, path: FieldPath) -> Any:
        """Returns the resolved value at a path. Raises _Unresolvable if absent."""
        node: Any = self.tree
        for depth, key in enumerate(target):
            if isinstance(node, str) and has_interpolation(node):
                # A section on the way may be a reference to another section.
                node = self._field(node, target[:depth])
            if isinstance(node, dict) and str(key) in node:
                node = node[str(key)]
            elif isinstance(node, list) and isinstance(key, int) and key < len(node):
                node = node[key]
            else:
                raise _Unresolvable(self._no_target(node, target, depth, path))
        value = self.resolve(node, target)
        if value is _FAILED:
            self.failed.add(path)
        return value

    def _no_target(self, node: Any, target: FieldPath, depth: int, path: FieldPath) -> Issue:
        """Returns the issue of a reference to an absent field."""
        near = difflib.get_close_matches(str(target[depth]), list(node) if isinstance(node, dict) else [], 1)
        fix = f"did you mean `${{{show((*target[:depth], near[0]))}}}`?" if near else "refer to a field of this file"
        return Issue(path, f"`${{{show(target)}}}` refers to a field that is not in the file", fix, Interpolation)

    def _spend(self, node: Any) -> None:
        """Counts a value against the limits. Raises _TooLarge."""
        self._nodes += 1
        self._chars += len(node) if isinstance(node, str) else 0
        # Only the file shares the targets of references: a few lines could expand to gigabytes here.
        if self._nodes > 4 * limits.CONFIG_NODES or self._chars > 4 * limits.CONFIG_SIZE_BYTES:
            raise _TooLarge


def as_written(node: Any) -> Any:
    """Returns resolved data as it would be written in a file: each `${` in a text is escaped."""
    if isinstance(node, dict):
        return {key: as_written(value) for key, value in node.items()}
    if isinstance(node, list):
        return [as_written(element) for element in node]
    return escape(node) if isinstance(node, str) else node


def resolve_interpolations(
    tree: dict[str, Any], source: SourceMap, environ: Mapping[str, str]
) -> tuple[dict[str, Any], list[Issue], set[FieldPath]]:
    """Replaces each `${...}` in the tree; returns the new tree, the issues, and the paths of fields removed because of
    an issue.
    """
    resolver = _Resolver(tree, source, environ)
    try:
        resolved = resolver.resolve(tree, ())
    except _TooLarge:
        issue = Issue((), "references expand to more than an experiment file may hold", None, Interpolation)
        return {}, [issue], {()}
    assert isinstance(resolved, dict)
    return resolved, resolver.issues, resolver.failed
