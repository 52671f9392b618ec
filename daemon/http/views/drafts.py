"""Drafts of experiment files: a text or a configuration with changes, as YAML, and checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta

from rftd.daemon.config.form_fields import FormField
from rftd.daemon.http.views import commands
from rftd.daemon.http.views.problem import ProblemPart
from rftd.daemon.http.views.route import Daemon, command

if TYPE_CHECKING:
    from rftd.ops.errors import RftdError

_TAG: Final = "experiments"
"""Chapter of the OpenAPI document with these routes."""
_TEXT_CHARACTERS: Final = 1 << 20
"""Maximum number of characters in a file or in one change: 1 Mi."""
_CHANGES: Final = 1000
"""Maximum number of changes in a request."""
Change = Annotated[str, Meta(max_length=_TEXT_CHARACTERS)]
"""One change of a field, or the path of a field to remove."""
Changes = Annotated[list[Change], Meta(max_length=_CHANGES)]
"""Changes of a request, at most `_CHANGES`."""


class FileDraft(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/experiments/draft: the beginning as text or as a configuration, and the changes to it."""

    text: Annotated[str, Meta(max_length=_TEXT_CHARACTERS)] = ""
    """An experiment file, in current or older names; a `${...}` stays text."""
    config: dict[str, Any] = {}
    """A configuration, for a draft without a text."""
    set: Changes = []
    """Changes `key=value` with the value as YAML, as in `submit -s`."""
    unset: Changes = []
    """Fields to remove."""


class DraftedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A draft with its changes: as configuration, as YAML, and as judged by the checks of a submission."""

    config: dict[str, Any]
    """Configuration of the draft with the changes applied."""
    text: str
    """The file as YAML, each field with its effect as a comment."""
    errors: list[ProblemPart]
    """Every error of `rftd config check`; empty for a valid file."""
    report: commands.CheckReport | None
    """The check of a valid file."""
    arguments: list[FormField]
    """Declared arguments of the parts named in the file, such as rewards and losses."""


@command("/v1/experiments/draft", FileDraft, DraftedFile, tag=_TAG, dry=True)
async def draft(daemon: Daemon, body: FileDraft) -> DraftedFile:
    """Apply changes to an experiment file and check it; append nothing."""
    import asyncio  # not above: the command line imports this module, and needs no event loop to check a file

    from rftd.ops.errors import RftdError

    tree, errors = await asyncio.to_thread(_edited, body)
    report: commands.CheckReport | None = None
    if not errors:
        try:
            report = await commands.check.work(daemon, commands.Submit(config=tree))
        except RftdError as error:
            errors = _parts(error)
    named = tree if report is None else report.resolved
    return DraftedFile(config=tree, text=_commented(tree), errors=errors, report=report, arguments=_arguments(named))


def _edited(body: FileDraft) -> tuple[dict[str, Any], list[ProblemPart]]:
    """Returns the draft with its changes in current names, and the errors of text and changes."""
    from rftd.daemon.config.field_path import parse
    from rftd.daemon.config.issue import ConfigErrors, Issue, SyntaxIssue, report
    from rftd.daemon.config.loading import apply_overrides
    from rftd.daemon.config.normalise import current_name, normalise
    from rftd.daemon.config.plain import check_plain
    from rftd.daemon.config.source import SourceMap
    from rftd.daemon.config.yaml_source import parse_yaml

    source = SourceMap("text")
    tree: Any = body.config
    issues = check_plain(tree)
    if body.text:
        try:
            tree, source, issues = parse_yaml(body.text, "text")
        except ConfigErrors as error:
            return {}, _parts(error)
    if not isinstance(tree, dict):
        tree = {}
    if not issues:
        tree, issues, _ = normalise(tree, source)
        issues += apply_overrides(tree, body.set, source)
        for name in body.unset:
            if path := parse(name):
                _remove(tree, current_name(path))
            else:
                fix = "write the path of a field, for example buffer.batch_size"
                issues.append(Issue((), f"{name[:120]!r} is not a field's path", fix, SyntaxIssue))
    return tree, _parts(report(issues, source)) if issues else []


def _remove(tree: dict[str, Any], path: tuple[str | int, ...]) -> None:
    """Removes a field, and sections without further fields above it."""
    sections: list[Any] = [tree]
    for key in path[:-1]:
        below = sections[-1].get(key) if isinstance(sections[-1], dict) else None
        if not isinstance(below, dict):
            return
        sections.append(below)
    for key, section in zip(reversed(path), reversed(sections), strict=True):
        section.pop(key, None)
        if section:
            return


def _parts(error: RftdError) -> list[ProblemPart]:
    """Returns the single errors inside an error, for an answer."""
    from rftd.daemon.cli.output.failure import parts

    return [
        ProblemPart(code=fault.code, what=fault.what, field=fault.field, where=fault.where, fix=fault.fix)
        for fault in parts(error)
    ]


def _commented(tree: dict[str, Any]) -> str:
    """Returns the tree as YAML, each field with the first sentence of its effect."""
    from rftd.daemon.config.field_path import parse
    from rftd.daemon.config.form_fields import form_fields
    from rftd.daemon.config.yaml_text import yaml_text

    comments = {
        path: field.text.partition(". ")[0] for field in form_fields() if field.text and (path := parse(field.path))
    }
    return yaml_text(tree, comments)


def _arguments(tree: dict[str, Any]) -> list[FormField]:
    """Returns the declared arguments of the parts named in a configuration."""
    from rftd.daemon.config.form_fields import argument_fields
    from rftd.daemon.config.resolve.algorithm import PARTS
    from rftd.workers.workflows.registry import WORKFLOWS
    from rftd.workers.workflows.rewards.registry import REWARDS

    taskset = "buffer.explorer_input.taskset"
    parts = [(f"algorithm.{name}_fn", f"algorithm.{name}_fn_args", plugins) for name, plugins in PARTS.items()]
    parts += [
        (f"{taskset}.default_workflow_type", f"{taskset}.workflow_args", WORKFLOWS),
        (f"{taskset}.default_reward_fn_type", f"{taskset}.reward_fn_args", REWARDS),
    ]
    fields: list[FormField] = []
    for path, arguments, plugins in parts:
        name: Any = tree
        for key in path.split("."):
            name = name.get(key) if isinstance(name, dict) else None
        if isinstance(name, str) and name in plugins.names():
            fields += argument_fields(name, arguments, plugins)
    return fields
