"""`ConfigFiles` finds the file named by `--config-name`: in the script, in a folder beside it, or in a parent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from rftd.daemon.config.loading import read_text

_MOST_LEVELS: Final = 6
"""Number of folders above the script searched for a relative `--config-path`."""
_RECIPES: Final = "recipe"
"""Folder of veRL's repository that became a separate repository."""
_DEFAULT_CONFIG_PATHS: Final = ("", "config", "./config")
"""Values of `--config-path` meaning veRL's own folder beside the program."""


@dataclass(frozen=True, slots=True)
class ConfigFiles:
    """Sources of a Hydra configuration: the script's own texts, a named folder, and the folders above the script."""

    script: Path | None = None
    """The imported script or file; None for a command line."""
    folder: Path | None = None
    """A folder named by the user."""
    written: Mapping[str, str] = field(default_factory=dict)
    """Texts written by the script itself, by file path."""
    reads: bool = True
    """False for a text from elsewhere: no file of this machine is read for it."""

    def find(self, name: str, folder: str, program: str = "") -> tuple[str, str] | None:
        """Returns the text and path of a configuration; None if there is none. `folder` is the value of
        `--config-path`, relative to the `program`.

        Raises ConfigErrors for an unreadable file.
        """
        file = f"{name}.yaml"
        for path, text in self.written.items():
            if PurePosixPath(path).name == file:
                return text, path
        for above in self._folders(folder, program):
            try:
                is_file = (above / file).is_file()
            except (OSError, ValueError):
                continue
            if is_file:
                return read_text(above / file), str(above / file)
        return None

    def names_another(self, folder: str) -> bool:
        """True if `--config-path` names a folder other than that of veRL's own configurations."""
        return folder not in _DEFAULT_CONFIG_PATHS or self.folder is not None

    def _folders(self, folder: str, program: str) -> list[Path]:
        """Returns the folders to search for the value of `--config-path`, the most likely first."""
        if not self.reads:
            return []
        # The folder before the last variable is unknown: only the remainder of the path is searched for.
        relative = folder.rpartition("}")[2].lstrip("/") if "${" in folder else folder
        named = [self.folder] if self.folder is not None else []
        if self.script is None:
            return [*named, Path(relative or ".")]
        above = list(self.script.absolute().parents)[:_MOST_LEVELS]
        module = program if "/" in program else program.removesuffix(".py").replace(".", "/")
        beside = PurePosixPath(module.lstrip("./")).parent
        candidates = (PurePosixPath(relative or "config"), beside / (relative or "config"))
        # veRL's recipes, once a folder of its repository, are a separate repository now.
        recipes = tuple(candidate.relative_to(_RECIPES) for candidate in candidates if candidate.parts[0] == _RECIPES)
        return [*named, *(parent / candidate for parent in above for candidate in (*candidates, *recipes)), *above[:1]]
