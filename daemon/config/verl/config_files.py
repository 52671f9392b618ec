"""`ConfigFiles` finds the file that `--config-name` means: of the script, in a folder beside it, or on the way up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from rftd.daemon.config.loading import read_text

_MOST_LEVELS: Final = 6
"""Folders above the script in which a relative `--config-path` is looked for."""
_RECIPES: Final = "recipe"
_OF_THE_PROGRAM: Final = ("", "config", "./config")
"""A `--config-path` that is veRL's own folder beside its program."""


@dataclass(frozen=True, slots=True)
class ConfigFiles:
    """The places where a configuration may be."""

    script: Path | None = None
    """The script or file that is imported; None for a command line."""
    folder: Path | None = None
    """A folder that the user names."""
    written: Mapping[str, str] = field(default_factory=dict)
    """Texts that the script writes itself, by the paths of their files."""

    def find(self, name: str, folder: str, program: str = "") -> tuple[str, str] | None:
        """The text of a configuration and where it is; None if there is none. `folder` is what `--config-path` says,
        which is beside the `program`.

        Raises ConfigErrors for a file that cannot be read.
        """
        file = f"{name}.yaml"
        for path, text in self.written.items():
            if PurePosixPath(path).name == file:
                return text, path
        for above in self._folders(folder, program):
            try:
                there = (above / file).is_file()
            except (OSError, ValueError):
                continue
            if there:
                return read_text(above / file), str(above / file)
        return None

    def names_another(self, folder: str) -> bool:
        """True if `--config-path` is not the folder of veRL's own configurations."""
        return folder not in _OF_THE_PROGRAM or self.folder is not None

    def _folders(self, folder: str, program: str) -> list[Path]:
        # What is before the last variable is a folder that nobody knows: the rest of the path is looked for.
        relative = folder.rpartition("}")[2].lstrip("/") if "${" in folder else folder
        named = [self.folder] if self.folder is not None else []
        if self.script is None:
            return [*named, Path(relative or ".")]
        above = list(self.script.absolute().parents)[:_MOST_LEVELS]
        module = program if "/" in program else program.removesuffix(".py").replace(".", "/")
        beside = PurePosixPath(module.lstrip("./")).parent
        places = (PurePosixPath(relative or "config"), beside / (relative or "config"))
        # veRL's recipes, a folder of its repository once, are a repository of their own.
        recipes = tuple(place.relative_to(_RECIPES) for place in places if place.parts[0] == _RECIPES)
        return [*named, *(parent / place for parent in above for place in (*places, *recipes)), *above[:1]]
