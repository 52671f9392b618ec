"""`AgentFolders`: copies of the folders of agents and environments, made at submission, named after their content.

A folder changes while people work on a program. Workers copy the kept folder for each command, so runs, resumptions and
forks have the files of their submission.
"""

from __future__ import annotations

import copy
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.run.supervisor.kept_tables import KeptTables
from rftd.daemon.trust.judge import SubmissionJudge
from rftd.ops import limits
from rftd.ops.durable import make_durable_folder, sync_folder
from rftd.ops.errors import ConfigError, DataError, RftdError
from rftd.storage.files.table_files import agent_folder_name
from rftd.workers.workflows.sandbox.run_folder import only_plain

_ARGUMENTS = "workflow_args"
"""Key of a workflow's arguments, at any depth of a configuration."""
_FOLDERS = ("agent_folder", "environment_folder")
"""Arguments that name a folder with a workflow's program."""


def names_agent_folders(config: dict[str, Any]) -> bool:
    """True if the configuration names the folder of an agent's or an environment's files."""
    return any(True for _ in _named(config, ()))


class AgentFolders:
    """Copies the folders of agents and environments named in a submission, for its workers."""

    def __init__(self, judge: SubmissionJudge, kept: KeptTables) -> None:
        """`kept` decides where the copies go, under the checkpoint root; `judge` checks the asker's rights."""
        self._judge = judge
        self._kept = kept
        self.notes: list[str] = []
        """Warnings about the folders copied."""

    def read(self, config: dict[str, Any]) -> dict[str, Any]:
        """Copies each named folder, and returns the configuration with the copies in place of the originals. Blocks.

        Raises ConfigError for a missing or too large folder, NotAllowedError, DataError for an unreadable one.
        """
        changed = copy.deepcopy(config)
        for path, arguments in _named(changed, ()):
            field = str(path[-1])
            folder = Path(arguments[field])
            self._judge.folder(path, str(folder))
            root = changed.get("checkpoint_root_dir")
            if not isinstance(root, str) or not root.startswith("/"):
                raise ConfigError(f"is required: {field} is kept below it", field="checkpoint_root_dir")
            self._judge.folder(("checkpoint_root_dir",), root)
            try:
                copy_folder, digest = _kept_copy(field, folder, self._kept.folder(Path(root)))
            except RftdError as error:
                error.field = show(path)
                raise
            if copy_folder != folder:
                self.notes.append(
                    f"{show(path)}: {folder} is used as it is now ({digest[:12]}), and is kept in {copy_folder}"
                )
            arguments[field] = str(copy_folder)
        return changed


def _named(node: Any, path: FieldPath) -> Iterator[tuple[FieldPath, dict[str, Any]]]:
    """Yields the path of each field below `node` that names a program's folder, with the mapping of workflow arguments
    containing the field.
    """
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, inner in children:
        below = (*path, key)
        if key == _ARGUMENTS and isinstance(inner, dict):
            for field in _FOLDERS:
                if isinstance(inner.get(field), str) and inner[field].startswith("/"):
                    yield (*below, field), inner
        else:
            yield from _named(inner, below)


def _kept_copy(field: str, source: Path, home: Path) -> tuple[Path, str]:
    """Copies a folder into `home` unless an equal copy is there, and returns the copy and its digest. Raises
    ConfigError for a missing or too large folder, DataError for an unreadable one.
    """
    _check_size(field, source)
    make_durable_folder(home)
    with tempfile.TemporaryDirectory(dir=home, prefix=".agent-") as temporary:
        # The digest is that of the copy: the source may change meanwhile.
        copied = Path(temporary) / "copy"
        try:
            shutil.copytree(source, copied, symlinks=True, ignore=only_plain)
            digest = _digest(copied)
        except (OSError, shutil.Error) as error:
            raise DataError(f"{field} cannot be copied: {error}", where=str(source)) from error
        copy_folder = home / agent_folder_name(digest)
        if not copy_folder.exists():
            _sync(copied)
            copied.rename(copy_folder)
            sync_folder(home)
        os.utime(copy_folder)  # copies have the times of their sources, and unused old ones are removed
    return copy_folder, digest


def _check_size(field: str, source: Path) -> None:
    """Raises ConfigError if `source` is no folder, or has more bytes than a sandbox task may."""
    if not source.is_dir():
        raise ConfigError(f"{field} {str(source)!r} is no folder", fix="name a folder")
    size_bytes = 0
    for file in source.rglob("*"):
        size_bytes += file.lstat().st_size
        if size_bytes > limits.SANDBOX_TASK_SIZE_BYTES:
            most = limits.SANDBOX_TASK_SIZE_BYTES // limits.MIB
            raise ConfigError(f"{field} has more than {most} MiB", fix="name large folders as `readable`")


def _digest(folder: Path) -> str:
    """Returns the sha256 of names, kinds, executable bits and contents below a folder."""
    total = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        status = file.lstat()
        kind = stat.S_IFMT(status.st_mode) | (status.st_mode & 0o100)
        content = b""
        if file.is_symlink():
            content = os.readlink(file).encode("utf-8", "surrogateescape")
        elif file.is_file():
            content = hashlib.sha256(file.read_bytes()).digest()
        name = str(file.relative_to(folder)).encode("utf-8", "surrogateescape")
        for field in (name, b"%o" % kind, content):
            total.update(b"%d:" % len(field) + field)
    return total.hexdigest()


def _sync(folder: Path) -> None:
    """Syncs each file and folder of a copy to the disk."""
    for directory, _, names in os.walk(folder):
        for name in names:
            file = Path(directory, name)
            if not file.is_symlink():
                descriptor = os.open(file, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
        sync_folder(Path(directory))
