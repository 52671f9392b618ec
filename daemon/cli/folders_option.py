"""`--folders`: the users with access to files of a daemon or worker, and the start of such a process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rftd.ops.own_folder import FolderAccess


class _Access(click.Choice[str]):
    """A click choice whose value is a `FolderAccess`."""

    def __init__(self) -> None:
        super().__init__(("private", "group"))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the chosen word as a `FolderAccess`."""
        from rftd.ops.own_folder import FolderAccess

        return FolderAccess(super().convert(value, param, ctx))


folders_option = click.option(
    "--folders",
    type=_Access(),
    default="private",
    show_default=True,
    envvar="RFTD_FOLDERS",
    help="Who may enter experiments' folders: this user, or its group. The data folder is always private.",
)
"""Adds `--folders`, passed as `folders`."""


def begin_process(folders: FolderAccess) -> None:
    """Restricts access to files created by this process according to `--folders`, and raises the open-file limit."""
    from rftd.ops.open_files import raise_open_files
    from rftd.ops.own_folder import close_to_others

    close_to_others(folders)
    raise_open_files()
