"""The public calls turn a file, or data that a client sent, into an `ExperimentSpec`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from rftd.daemon.config.client_side import absolute_paths, relative_paths, withhold_secrets
from rftd.daemon.config.field_path import FieldPath, child, parse, show
from rftd.daemon.config.grammar import has_interpolation
from rftd.daemon.config.interpolation import as_written, resolve_interpolations
from rftd.daemon.config.issue import ConfigErrors, Contradiction, Issue, LimitIssue, SyntaxIssue, report
from rftd.daemon.config.normalise import current_name, normalise
from rftd.daemon.config.plain import check_plain, depth_of
from rftd.daemon.config.resolve.auxiliary import unset_variables
from rftd.daemon.config.resolve.experiment import resolve_experiment
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.source import SourceMap, SourcePlace
from rftd.daemon.config.stand_ins import found_beside, plain
from rftd.daemon.config.validation import validate
from rftd.daemon.config.yaml_source import parse_yaml
from rftd.ops import limits
from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.devices.host import ANY_HOST, Host

_PATH: FieldPath = ("trainer", "trainer_config_path")


@dataclass(frozen=True, slots=True)
class Submission:
    """An experiment file, read: what the client sends and what it tells its user."""

    config: dict[str, Any]
    """Normalised, plain, `${...}` resolved, no secret: what is sent, and what `rftd config show --given` prints."""
    spec: ExperimentSpec
    source: SourceMap
    warnings: tuple[str, ...]
    """Notes of fields in an older spelling, then the warnings of the specification."""
    wrong: ConfigErrors | None = None
    """What this side would refuse of it: a daemon has the last word, for it may have extensions that are not here."""


def load_file(
    path: Path | str,
    *,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    host: Host = ANY_HOST,
    drafts: bool = False,
) -> Submission:
    """The experiment in a file, with `-s` overrides, for workers on `host`; see `load_text`."""
    text = read_text(Path(path))
    return load_text(text, str(path), overrides=overrides, environ=environ, cwd=cwd, host=host, drafts=drafts)


def load_text(
    text: str,
    origin: str,
    *,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    host: Host = ANY_HOST,
    drafts: bool = False,
) -> Submission:
    """The experiment in a text that is already read, from standard input for example.

    Raises ConfigErrors with every error; with `drafts`, errors that a daemon may see otherwise are `wrong` in it.
    """
    environ = os.environ if environ is None else environ
    cwd = (cwd or Path.cwd()).absolute()
    tree, source, issues = parse_yaml(text, origin)
    if not isinstance(tree, dict):
        what = "the file is empty" if tree is None else "the file must be a mapping of sections"
        raise report([*issues, Issue((), what, "start from examples/gsm8k.yaml", SyntaxIssue)], source)
    # The order of what follows matters: overrides may name a field in either spelling and hold a `${...}`; secrets
    # are told from references once these are resolved; paths are made absolute last, when every text is final.
    tree, spelling, notes = normalise(tree, source)
    issues += spelling
    issues += apply_overrides(tree, overrides, source)
    issues += inline_trainer_config(tree, cwd, environ)
    # Again, for whole sections: of an override, and of the trainer's own file.
    tree, spelling, more = normalise(tree, source)
    issues += spelling
    notes += more
    tree, unresolved, failed = resolve_interpolations(tree, source, environ)
    issues += unresolved
    issues += withhold_secrets(tree, source)
    absolute_paths(tree, cwd=cwd, environ=environ)
    wrong: ConfigErrors | None = None
    try:
        spec = _spec(tree, source, issues, failed, host)
    except ConfigErrors as errors:
        if not drafts or errors.draft is None:
            raise
        wrong = errors
        spec = errors.draft
    return Submission(spec.config, spec, source, (*notes, *spec.warnings, *unset_variables(spec, environ)), wrong)


def check_config(
    config: Mapping[str, Any],
    *,
    overrides: Sequence[str] = (),
    host: Host = ANY_HOST,
    judge: Callable[[Experiment], None] | None = None,
) -> ExperimentSpec:
    """The specification of a config that a client sent, with `key=value` overrides, for workers on `host`.

    Raises ConfigErrors, and what the `judge` raises, which is asked before anything that the config names is looked at.

    Either spelling, plain data; a `${...}` stays text, for nothing of this side's environment may be read by it, and a
    warning says so. Literal secrets and relative paths are refused.
    """
    source = SourceMap("")
    if not isinstance(config, Mapping):
        raise report([Issue((), "an experiment must be a mapping of sections", None, SyntaxIssue)], source)
    # Before anything recurses into it: what a client sends may be nested deeper than the stack is.
    issues = check_plain(config if isinstance(config, dict) else dict(config))
    if issues:
        raise report(issues, source)
    tree, spelling, _ = normalise(_copy(config), source)
    issues += spelling
    issues += apply_overrides(tree, overrides, source)
    issues += withhold_secrets(tree, source)
    issues += relative_paths(tree)
    spec = _spec(tree, source, issues, set(), host, judge)
    opened = islice(_opened(tree), limits.CONFIG_ERRORS)
    kept = [f"{show(path)} holds a `${{`, which stays text: `rftd submit` alone resolves it" for path in opened]
    return msgspec.structs.replace(spec, warnings=(*spec.warnings, *kept)) if kept else spec


def _opened(node: Any, path: FieldPath = ()) -> Iterator[FieldPath]:
    """The fields whose text holds a `${`."""
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _opened(value, (*path, key))
    elif isinstance(node, str) and has_interpolation(node):
        yield path


def portable_overrides(
    config: Mapping[str, Any],
    overrides: Sequence[str],
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> list[str]:
    """Overrides of a config that lies elsewhere, as another side reads them: `key=JSON`.

    Their `${...}` are resolved, their secrets withheld and their paths absolute. Raises ConfigErrors.
    """
    # What the other side holds is text: only what is written here is resolved here.
    tree = as_written(config)
    source = SourceMap("")
    issues = apply_overrides(tree, overrides, source)
    environ = os.environ if environ is None else environ
    tree, unresolved, _ = resolve_interpolations(tree, source, environ)
    issues += [*unresolved, *withhold_secrets(tree, source)]
    if issues:
        raise report(issues, source)
    absolute_paths(tree, cwd=(cwd or Path.cwd()).absolute(), environ=environ)
    portable = []
    for override in overrides:
        key = parse(override.partition("=")[0].strip())
        assert key is not None, override
        path = current_name(key)
        value = tree
        for part in path:
            value = child(value, part if isinstance(value, list) else str(part))
        portable.append(f"{show(path)}={msgspec.json.encode(value).decode()}")
    return portable


def read_text(path: Path) -> str:
    """The text of an experiment file. Raises ConfigErrors if there is none."""
    return _text(lambda: path.open("rb"), str(path))


def read_stream(stream: BinaryIO, origin: str) -> str:
    """The text of an experiment file from a stream that is open, such as standard input. Raises ConfigErrors."""
    return _text(lambda: nullcontext(stream), origin)


def _text(opened: Callable[[], AbstractContextManager[BinaryIO]], origin: str) -> str:
    source = SourceMap(origin)
    try:
        with opened() as file:
            # One byte over the limit is enough to refuse the file, and a device without an end is not read for ever.
            data = file.read(limits.CONFIG_SIZE_BYTES + 1)
        if len(data) > limits.CONFIG_SIZE_BYTES:
            # Before it is decoded: what was read may end within a character.
            what = f"larger than {limits.CONFIG_SIZE_BYTES:,} bytes"
            raise report([Issue((), what, "an experiment file holds settings, not data", LimitIssue)], source)
        return data.decode("utf-8-sig")
    except FileNotFoundError:
        raise report([Issue((), "no such file", "check the path", SyntaxIssue)], source) from None
    except OSError as error:
        what = f"cannot be read: {error.strerror or error}"
        raise report([Issue((), what, "check the path and its permissions", SyntaxIssue)], source) from None
    except UnicodeDecodeError as error:
        what = f"not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}"
        raise report([Issue((), what, "is it an experiment file? save it as UTF-8", SyntaxIssue)], source) from None


def _spec(
    tree: dict[str, Any],
    source: SourceMap,
    issues: list[Issue],
    failed: set[FieldPath],
    host: Host,
    judge: Callable[[Experiment], None] | None = None,
) -> ExperimentSpec:
    """Validates and resolves; raises everything that was found so far and on the way."""
    issues += check_plain(tree)
    experiment, wrong = validate(tree, source)
    # A field whose `${...}` failed is left out of the tree: that it is missing is no error of its own.
    issues += [issue for issue in wrong if not _follows(issue.path, failed)]
    if judge is not None and (experiment is None or issues):
        raise report(issues, source)
    if experiment is not None and judge is not None:
        judge(experiment)
    if experiment is None or issues:
        raise report([*issues, *found_beside(tree, issues, source, host)], source)
    # Only what the user wrote is kept: a default that a later release changes must not look as if it had been
    # asked for.
    config = experiment.model_dump(exclude_unset=True)
    spec, contradictions = resolve_experiment(experiment, plain(config), host=host)
    if spec is None:  # an algorithm that nobody knows leaves nothing to be said of its stage
        unknown = [issue for issue in contradictions if issue.path[-1:] == ("algorithm_type",)]
        contradictions += found_beside(tree, unknown, source, host)
    if spec is None or contradictions:
        errors = report(contradictions, source)
        errors.draft = spec
        raise errors
    return spec


def _follows(path: FieldPath, failed: set[FieldPath]) -> bool:
    return any(path[: len(cause)] == cause for cause in failed)


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def inline_trainer_config(tree: dict[str, Any], cwd: Path, environ: Mapping[str, str]) -> list[Issue]:
    """Puts the file's content into `trainer.trainer_config`; an empty path is dropped."""
    trainer = tree.get("trainer")
    if not isinstance(trainer, dict) or "trainer_config_path" not in trainer:
        return []
    given = trainer["trainer_config_path"]
    if given is None or given == "":
        del trainer["trainer_config_path"]
        return []
    if not isinstance(given, str) or "${" in given:
        return []  # the schema names the type; a path is written out
    if trainer.get("trainer_config"):
        fix = "keep trainer_config only"
        return [Issue(_PATH, "trainer_config is given as well", fix, Contradiction)]
    try:
        text = read_text((cwd / given).expanduser())
        content, source, issues = parse_yaml(text, given)
    except (ValueError, RuntimeError) as error:  # a NUL in the path, or the home of nobody
        return [Issue(_PATH, f"cannot be read: {error}", "check the path, or write trainer_config inline")]
    except ConfigErrors as error:
        first = error.errors[0]
        return [Issue(_PATH, f"{first.what} ({first.where})", first.fix or "correct that file")]
    if not isinstance(content, dict) or issues:
        return [Issue(_PATH, "the file is not a mapping, or has a key twice", "correct that file")]
    content, unresolved, _ = resolve_interpolations(content, source, environ)
    if unresolved:
        return [Issue(_PATH, f"in the file: {issue.what}", issue.fix) for issue in unresolved]
    del trainer["trainer_config_path"]
    # It is resolved, and the tree around it is not yet.
    trainer["trainer_config"] = as_written(content)
    return []


def apply_overrides(tree: dict[str, Any], overrides: Sequence[str], source: SourceMap) -> list[Issue]:
    """Sets each `key=value` in `tree`, the value read as YAML; returns what could not be set."""
    issues: list[Issue] = []
    for override in overrides:
        key, equals, text = override.partition("=")
        place = SourcePlace(f"-s {key.strip()[:120]}")
        path = parse(key.strip())
        if not equals or path is None or len(path) > limits.CONFIG_DEPTH:
            fix = "write -s section.field=value, for example -s buffer.batch_size=4"
            issues.append(Issue((), "an override is written key=value", fix, SyntaxIssue, place=place))
            continue
        try:
            value, _, problems = parse_yaml(text, str(place))
        except ConfigErrors as error:
            issues.append(Issue(path, f"the value is {error.errors[0].what}", "quote it", SyntaxIssue, place=place))
            continue
        # Each override is shallow by itself, and many of them could still build a tree that is too deep to
        # walk.
        if len(path) + depth_of(value) > limits.CONFIG_DEPTH:
            what = f"nested deeper than {limits.CONFIG_DEPTH} levels"
            issues.append(Issue(path[:4], what, None, LimitIssue, place=place))
            continue
        issues += [Issue(path, problem.what, problem.fix, problem.kind, place=place) for problem in problems]
        path = current_name(path)
        source.flags[path] = text.strip()
        issue = _set(tree, path, value, source, place)
        if issue is not None:
            issues.append(issue)
    return issues


def _set(tree: dict[str, Any], path: FieldPath, value: Any, source: SourceMap, place: SourcePlace) -> Issue | None:
    node: Any = tree
    for depth, part in enumerate(path):
        last = depth == len(path) - 1
        if isinstance(node, list):
            if not isinstance(part, int) or part >= len(node):
                what = f"{show(path[:depth])} is a list of {len(node)}: an item is named by its index, from 0"
                return Issue(
                    path, what, f"write {show((*path[:depth], 0))}" if node else None, SyntaxIssue, place=place
                )
        elif isinstance(node, dict):
            # `0` is an index in a list and a key in a mapping: only the node tells which.
            part = str(part)
            if not last and node.get(part) is None:
                node[part] = {}
                source.keys.setdefault(path[: depth + 1], place)
        else:
            what = f"{show(path[:depth])} is a single value, it has no field {part}"
            return Issue(path, what, None, SyntaxIssue, place=place)
        if not last:
            node = node[part]
            continue
        node[part] = value
        full = tuple(path)
        # What stood below the field in the file is gone, and an error must not point at it any more.
        for known in [known for known in source.values if known[: len(full)] == full]:
            source.values.pop(known)
            source.keys.pop(known, None)
        # The override names the field by its current name, whatever the file called it.
        source.moved.pop(full, None)
        source.values[full] = source.keys[full] = place
    return None
