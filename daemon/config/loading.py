"""Public functions reading a file, or data sent by a client, into an `ExperimentSpec`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from rftd.daemon.config.client_side import absolute_paths, named_paths, relative_paths, withhold_secrets
from rftd.daemon.config.field_path import FieldPath, child, parse, show
from rftd.daemon.config.further_errors import further_contradictions, plain
from rftd.daemon.config.grammar import has_interpolation
from rftd.daemon.config.interpolation import as_written, resolve_interpolations
from rftd.daemon.config.issue import ConfigErrors, Contradiction, Issue, LimitIssue, SyntaxIssue, report
from rftd.daemon.config.normalise import current_name, normalise
from rftd.daemon.config.own_sources import SOURCES, inline_sources
from rftd.daemon.config.plain import check_plain, depth_of
from rftd.daemon.config.resolve.auxiliary import unset_variables
from rftd.daemon.config.resolve.experiment import resolve_experiment
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.source import SourceMap, SourcePlace
from rftd.daemon.config.validation import validate
from rftd.daemon.config.yaml_source import parse_yaml
from rftd.daemon.config.yaml_text import yaml_text
from rftd.ops import limits
from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.devices.host import ANY_HOST, Host

_PATH: FieldPath = ("trainer", "trainer_config_path")
"""Field of the trainer's own file."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A parsed experiment file: the config sent to the daemon, and the notes shown to the user."""

    config: dict[str, Any]
    """Normalised, plain, `${...}` resolved, without secrets: sent to the daemon, and printed by `rftd config show
    --given`."""
    spec: ExperimentSpec
    """The complete specification."""
    source: SourceMap
    """Positions of the file's fields."""
    warnings: tuple[str, ...]
    """Notes on fields in an older spelling, then the warnings of the specification."""
    wrong: ConfigErrors | None = None
    """Errors found by the client, to be judged by the daemon, which may have extensions that the client lacks; None
    without errors.
    """


def load_file(
    path: Path | str,
    *,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    host: Host = ANY_HOST,
    drafts: bool = False,
) -> Submission:
    """Reads the experiment in a file, with `-s` overrides, for workers on `host`; see `load_text`."""
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
    """Reads the experiment from text already in memory, for example from standard input.

    Raises ConfigErrors with every error; with `drafts`, errors possibly judged otherwise by a daemon are returned in
    `wrong`.
    """
    environ = os.environ if environ is None else environ
    cwd = (cwd or Path.cwd()).absolute()
    tree, source, issues = _sections(text, origin)
    # The order matters: overrides may use either spelling and hold a `${...}`; secrets can be distinguished from
    # references only after the resolution; paths are made absolute last, when every text is final.
    tree, spelling, notes = normalise(tree, source)
    issues += spelling
    issues += apply_overrides(tree, overrides, source)
    issues += inline_trainer_config(tree, cwd, environ)
    recipe_issues, recipe_notes = inline_recipes(tree, cwd, environ)
    issues += recipe_issues
    notes += recipe_notes
    # Again, for whole sections set by an override or by the trainer's own file.
    tree, spelling, further_notes = normalise(tree, source)
    issues += spelling
    notes += further_notes
    tree, unresolved, failed = resolve_interpolations(tree, source, environ)
    issues += unresolved
    issues += inline_sources(tree, cwd=cwd)
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


def _sections(text: str, origin: str) -> tuple[dict[str, Any], SourceMap, list[Issue]]:
    """Returns the sections of a file, their positions, and the issues of its YAML. Raises ConfigErrors."""
    tree, source, issues = parse_yaml(text, origin)
    if not isinstance(tree, dict):
        problem = "the file is empty" if tree is None else "the file must be a mapping of sections"
        raise report([*issues, Issue((), problem, "start from examples/gsm8k.yaml", SyntaxIssue)], source)
    return tree, source, issues


def form_text(text: str, origin: str, *, environ: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
    """Returns an experiment file as YAML for the studio: in current names, with absolute paths and inlined files.

    A `${...}` stays as written, and values are unchecked. Raises ConfigErrors for a file without sections, unreadable
    inlined files, and secrets written openly.
    """
    environ = os.environ if environ is None else environ
    cwd = (cwd or Path.cwd()).absolute()
    tree, source, issues = _sections(text, origin)
    tree, spelling, _ = normalise(tree, source)
    issues += [*spelling, *inline_trainer_config(tree, cwd, environ), *inline_recipes(tree, cwd, environ)[0]]
    issues += inline_sources(tree, cwd=cwd)
    issues += withhold_secrets(tree, source)
    if issues:
        raise report(issues, source)
    root = tree.get("checkpoint_root_dir")
    unresolved = [(tree, "checkpoint_root_dir", root)] if isinstance(root, str) and has_interpolation(root) else []
    unresolved += [(node, key, node[key]) for _, node, key in named_paths(tree) if has_interpolation(node[key])]
    absolute_paths(tree, cwd=cwd, environ=environ)
    for node, key, written in unresolved:
        node[key] = written
    return yaml_text(tree)


def check_config(
    config: Mapping[str, Any],
    *,
    overrides: Sequence[str] = (),
    host: Host = ANY_HOST,
    judge: Callable[[Experiment], None] | None = None,
) -> ExperimentSpec:
    """Returns the specification of a config sent by a client, with `key=value` overrides, for workers on `host`.

    Raises ConfigErrors, and any error of the `judge`, called before anything named by the config is opened.

    Accepts either spelling and plain data. A `${...}` stays text, with a warning, because the config must not read the
    daemon's environment. Literal secrets and relative paths are refused.
    """
    source = SourceMap("")
    if not isinstance(config, Mapping):
        raise report([Issue((), "an experiment must be a mapping of sections", None, SyntaxIssue)], source)
    # Checked before any recursion: data from a client may be nested deeper than the stack.
    issues = check_plain(config if isinstance(config, dict) else dict(config))
    if issues:
        raise report(issues, source)
    tree, spelling, _ = normalise(_copy(config), source)
    issues += spelling
    issues += apply_overrides(tree, overrides, source)
    issues += withhold_secrets(tree, source)
    issues += relative_paths(tree)
    spec = _spec(tree, source, issues, set(), host, judge)
    interpolated_paths = islice(_interpolated_fields(tree), limits.CONFIG_ERRORS)
    unresolved_warnings = [
        f"{show(path)} holds a `${{`, which stays text: only `rftd submit` resolves it" for path in interpolated_paths
    ]
    return (
        msgspec.structs.replace(spec, warnings=(*spec.warnings, *unresolved_warnings)) if unresolved_warnings else spec
    )


def _interpolated_fields(node: Any, path: FieldPath = ()) -> Iterator[FieldPath]:
    """Yields the fields with a `${` in their text, except Python code."""
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            if key == SOURCES and not path:
                continue
            yield from _interpolated_fields(value, (*path, key))
    elif isinstance(node, str) and has_interpolation(node):
        yield path


def portable_overrides(
    config: Mapping[str, Any],
    overrides: Sequence[str],
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> list[str]:
    """Returns overrides of a config stored on another machine as `key=JSON`, readable by that machine.

    Every `${...}` is resolved, secrets are withheld and paths are absolute. Raises ConfigErrors.
    """
    # The stored config is plain text: only the overrides written here are resolved here.
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
        node = tree
        for step in path:
            node = child(node, step if isinstance(node, list) else str(step))
        portable.append(f"{show(path)}={msgspec.json.encode(node).decode()}")
    return portable


def read_text(path: Path) -> str:
    """Reads the text of an experiment file. Raises ConfigErrors if the file is unreadable."""
    return _read_limited(lambda: path.open("rb"), str(path))


def read_stream(stream: BinaryIO, origin: str) -> str:
    """Reads the text of an experiment file from an open stream; `origin` names the stream in errors. Raises
    ConfigErrors.
    """
    return _read_limited(lambda: nullcontext(stream), origin)


def _read_limited(opened: Callable[[], AbstractContextManager[BinaryIO]], origin: str) -> str:
    """Reads a text of limited size; `opened` opens the file or stream. Raises ConfigErrors."""
    source = SourceMap(origin)
    try:
        with opened() as file:
            # One byte over the limit suffices to refuse the file, and an endless device is not read for ever.
            content = file.read(limits.CONFIG_SIZE_BYTES + 1)
        if len(content) > limits.CONFIG_SIZE_BYTES:
            # Checked before decoding: the bytes read may end within a character.
            problem = f"larger than {limits.CONFIG_SIZE_BYTES:,} bytes"
            raise report([Issue((), problem, "an experiment file holds settings, not data", LimitIssue)], source)
        return content.decode("utf-8-sig")
    except FileNotFoundError:
        raise report([Issue((), "no such file", "check the path", SyntaxIssue)], source) from None
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
        raise report([Issue((), problem, "check the path and its permissions", SyntaxIssue)], source) from None
    except UnicodeDecodeError as error:
        problem = f"not UTF-8 text: byte {error.start} is 0x{content[error.start]:02x}"
        raise report([Issue((), problem, "is it an experiment file? save it as UTF-8", SyntaxIssue)], source) from None


def _spec(
    tree: dict[str, Any],
    source: SourceMap,
    issues: list[Issue],
    failed: set[FieldPath],
    host: Host,
    judge: Callable[[Experiment], None] | None = None,
) -> ExperimentSpec:
    """Validates and resolves the tree; raises all issues found earlier and on the way."""
    issues += check_plain(tree)
    experiment, wrong = validate(tree, source)
    # A field with a failed `${...}` is missing from the tree; the absence is not an error to report.
    issues += [issue for issue in wrong if not _is_below_failed(issue.path, failed)]
    if judge is not None and (experiment is None or issues):
        raise report(issues, source)
    if experiment is not None and judge is not None:
        judge(experiment)
    if experiment is None or issues:
        raise report([*issues, *further_contradictions(tree, issues, source, host)], source)
    # Only fields written by the user are stored: a default changed by a later release must not look like the user's
    # choice.
    config = experiment.model_dump(exclude_unset=True)
    spec, contradictions = resolve_experiment(experiment, plain(config), host=host)
    if spec is None:  # an unknown algorithm prevents all checks of its stage
        unknown = [issue for issue in contradictions if issue.path[-1:] == ("algorithm_type",)]
        contradictions += further_contradictions(tree, unknown, source, host)
    if spec is None or contradictions:
        errors = report(contradictions, source)
        errors.draft = spec
        raise errors
    return spec


def _is_below_failed(path: FieldPath, failed: set[FieldPath]) -> bool:
    """True for a field that could not be resolved, or lies below such a field."""
    return any(path[: len(cause)] == cause for cause in failed)


def _copy(value: Any) -> Any:
    """Returns a deep copy of plain data, as dicts and lists."""
    if isinstance(value, Mapping):
        return {key: _copy(element) for key, element in value.items()}
    return [_copy(element) for element in value] if isinstance(value, list) else value


def inline_trainer_config(tree: dict[str, Any], cwd: Path, environ: Mapping[str, str]) -> list[Issue]:
    """Moves the content of the trainer's own file into `trainer.trainer_config`; an empty path is dropped."""
    trainer = tree.get("trainer")
    if not isinstance(trainer, dict) or "trainer_config_path" not in trainer:
        return []
    config_path = trainer["trainer_config_path"]
    if config_path is None or config_path == "":
        del trainer["trainer_config_path"]
        return []
    if not isinstance(config_path, str) or "${" in config_path:
        return []  # the schema reports a wrong type, and a path must be written out
    if trainer.get("trainer_config"):
        fix = "keep trainer_config only"
        return [Issue(_PATH, "trainer_config is set as well", fix, Contradiction)]
    content, issues = _inlined(_PATH, config_path, "trainer_config", cwd, environ)
    if not issues:
        del trainer["trainer_config_path"]
        trainer["trainer_config"] = content
    return issues


def inline_recipes(tree: dict[str, Any], cwd: Path, environ: Mapping[str, str]) -> tuple[list[Issue], list[str]]:
    """Moves Data-Juicer's recipes into the operators naming them by `config_path`; returns issues, and notes on the
    keys of recipes without effect.
    """
    issues: list[Issue] = []
    notes: list[str] = []
    for path, arguments in _recipe_arguments(tree):
        recipe_path = arguments["config_path"]
        field = (*path, "config_path")
        if not isinstance(recipe_path, str) or "${" in recipe_path:
            issues.append(Issue(field, "names no file", "write the path of Data-Juicer's recipe"))
            continue
        if arguments.get("operators"):
            issues.append(Issue(field, "operators is set as well", "keep operators only", Contradiction))
            continue
        recipe, unreadable = _inlined(field, recipe_path, "operators", cwd, environ)
        issues += unreadable
        if unreadable:
            continue
        if not recipe.get("process"):
            issues.append(Issue(field, "the recipe has no list process", "name a recipe of Data-Juicer"))
            continue
        del arguments["config_path"]
        arguments["operators"] = recipe["process"]
        if "np" in recipe:
            arguments.setdefault("np", recipe["np"])
        if idle := sorted(map(str, recipe.keys() - {"process", "np", "project_name"})):
            notes.append(f"{show(field)}: {', '.join(idle)} of the recipe: no effect, only process and np are used")
    return issues, notes


def _recipe_arguments(tree: dict[str, Any]) -> Iterator[tuple[FieldPath, dict[str, Any]]]:
    """Yields the arguments of each operator `data_juicer` with a `config_path`, with their path."""
    stages = tree.get("stages")
    stage_trees = enumerate(stages) if isinstance(stages, list) else ()
    for prefix, above in ((), tree), *((("stages", index), stage) for index, stage in stage_trees):
        node: Any = above
        for key in ("data_processor", "experience_pipeline", "operators"):
            node = node.get(key) if isinstance(node, dict) else None
        for index, operator in enumerate(node if isinstance(node, list) else ()):
            arguments = operator.get("args") if isinstance(operator, dict) else None
            if isinstance(arguments, dict) and operator.get("name") == "data_juicer" and "config_path" in arguments:
                yield (*prefix, "data_processor", "experience_pipeline", "operators", index, "args"), arguments


def _inlined(
    field: FieldPath, path: str, inline: str, cwd: Path, environ: Mapping[str, str]
) -> tuple[dict[str, Any], list[Issue]]:
    """Returns the mapping in the YAML file named by a field, resolved, and issues; the field `inline` could hold it."""
    try:
        text = read_text((cwd / path).expanduser())
        content, source, issues = parse_yaml(text, path)
    except (ValueError, RuntimeError) as error:  # a NUL in the path, or the home folder of an unknown user
        return {}, [Issue(field, f"cannot be read: {error}", f"check the path, or write {inline} inline")]
    except ConfigErrors as error:
        first = error.errors[0]
        return {}, [Issue(field, f"{first.what} ({first.where})", first.fix or "correct that file")]
    if not isinstance(content, dict) or issues:
        return {}, [Issue(field, "the file is not a mapping, or has a key twice", "correct that file")]
    content, unresolved, _ = resolve_interpolations(content, source, environ)
    if unresolved:
        return {}, [Issue(field, f"in the file: {issue.what}", issue.fix) for issue in unresolved]
    # The content is resolved already, the tree around it not yet.
    return as_written(content), []


def apply_overrides(tree: dict[str, Any], overrides: Sequence[str], source: SourceMap) -> list[Issue]:
    """Sets each `key=value` in `tree`, with the value parsed as YAML; returns the issues of failed overrides."""
    issues: list[Issue] = []
    for override in overrides:
        key, equals, text = override.partition("=")
        position = SourcePlace(f"-s {key.strip()[:120]}")
        path = parse(key.strip())
        if not equals or path is None or len(path) > limits.CONFIG_DEPTH:
            fix = "write -s section.field=value, for example -s buffer.batch_size=4"
            issues.append(Issue((), "an override is written key=value", fix, SyntaxIssue, place=position))
            continue
        try:
            value, _, problems = parse_yaml(text, str(position))
        except ConfigErrors as error:
            issues.append(Issue(path, f"the value is {error.errors[0].what}", "quote it", SyntaxIssue, place=position))
            continue
        # Each override alone is shallow, but many together could build a tree too deep to walk.
        if len(path) + depth_of(value) > limits.CONFIG_DEPTH:
            description = f"nested deeper than {limits.CONFIG_DEPTH} levels"
            issues.append(Issue(path[:4], description, None, LimitIssue, place=position))
            continue
        issues += [Issue(path, problem.what, problem.fix, problem.kind, place=position) for problem in problems]
        path = current_name(path)
        source.flags[path] = text.strip()
        issue = _set(tree, path, value, source, position)
        if issue is not None:
            issues.append(issue)
    return issues


def _set(tree: dict[str, Any], path: FieldPath, value: Any, source: SourceMap, position: SourcePlace) -> Issue | None:
    """Sets one field of a tree; returns the issue of an impossible path, else None."""
    node: Any = tree
    for depth, key in enumerate(path):
        last = depth == len(path) - 1
        if isinstance(node, list):
            if not isinstance(key, int) or key >= len(node):
                description = f"{show(path[:depth])} is a list of {len(node)}: an item is named by its index, from 0"
                return Issue(
                    path,
                    description,
                    f"write {show((*path[:depth], 0))}" if node else None,
                    SyntaxIssue,
                    place=position,
                )
        elif isinstance(node, dict):
            # `0` is an index in a list and a key in a mapping, depending on the node.
            key = str(key)
            if not last and node.get(key) is None:
                node[key] = {}
                source.keys.setdefault(path[: depth + 1], position)
        else:
            description = f"{show(path[:depth])} is a single value, it has no field {key}"
            return Issue(path, description, None, SyntaxIssue, place=position)
        if not last:
            node = node[key]
            continue
        node[key] = value
        full = tuple(path)
        # Fields of the file below the overridden field no longer exist, and errors must not point at them.
        for stale in [stale for stale in source.values if stale[: len(full)] == full]:
            source.values.pop(stale)
            source.keys.pop(stale, None)
        # The override uses the current name of the field, regardless of the spelling in the file.
        source.moved.pop(full, None)
        source.values[full] = source.keys[full] = position
    return None
