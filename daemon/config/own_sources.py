"""`inline_sources`: on the client, the text of each Python file named by a reward, workflow, agent or loss goes
into `sources`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.issue import Contradiction, Issue, LimitIssue
from rftd.ops import limits
from rftd.workers.workflows.source import FILE, SourceName, source_name

SOURCES: Final = "sources"
"""Field with the texts of Python files."""
_FIELDS: Final = ("default_reward_fn_type", "default_workflow_type", "default_eval_workflow_type", "policy_loss_fn")
"""Fields that may name a Python file."""
_AGENT: Final = ("workflow_args", "agent")
"""The section and the argument naming an agent program."""


def inline_sources(tree: dict[str, Any], *, cwd: Path) -> list[Issue]:
    """Reads each file named as `PATH.py:NAME`, relative to `cwd`; the field then names it without its folder.

    Returns an issue for each file that is missing, too large, no text, or named like another one.
    """
    issues: list[Issue] = []
    sources = tree.get(SOURCES)
    texts: dict[str, Any] = dict(sources) if isinstance(sources, dict) else {}
    for path, section, field, named in _named(tree, ()):
        if named.file in texts and "/" not in named.file:
            continue  # already in the file itself
        text = _read_source(cwd / named.file, path)
        if isinstance(text, Issue):
            issues.append(text)
            continue
        file = Path(named.file).name
        if texts.setdefault(file, text) != text:
            problem = f"there are two files {file!r} with different content"
            issues.append(Issue(path, problem, "rename one of them", Contradiction))
            continue
        section[field] = f"{file}:{named.name}"
    if texts:
        tree[SOURCES] = texts
    return issues


def _named(node: Any, path: FieldPath) -> Iterator[tuple[FieldPath, dict[str, Any], str, SourceName]]:
    """Yields each field naming a source, with its section."""
    if isinstance(node, list):
        for number, section in enumerate(node):
            yield from _named(section, (*path, number))
    elif isinstance(node, dict):
        for field, setting in node.items():
            if field not in _FIELDS and (*path, field)[-2:] != _AGENT:
                yield from _named(setting, (*path, field))
            elif isinstance(setting, str) and (named := source_name(setting)) is not None:
                yield (*path, field), node, field, named


def _read_source(file: Path, path: FieldPath) -> str | Issue:
    """Returns the text of a Python file, or the issue of an unfit one."""
    if FILE.fullmatch(file.name) is None:
        return Issue(path, f"{file.name!r} is no name of a Python module", "rename the file to letters, digits and _")
    try:
        with file.open("rb") as stream:
            content = stream.read(limits.SOURCE_SIZE_BYTES + 1)
        if len(content) > limits.SOURCE_SIZE_BYTES:
            problem = f"{file} is larger than {limits.SOURCE_SIZE_BYTES:,} bytes"
            return Issue(path, problem, "make a package of it (docs/extending.md)", LimitIssue)
        return content.decode("utf-8-sig")
    except OSError as error:
        return Issue(path, f"{file} cannot be read: {error.strerror}", "name an existing Python file")
    except UnicodeDecodeError:
        return Issue(path, f"{file} is no UTF-8 text", "save it as UTF-8")
