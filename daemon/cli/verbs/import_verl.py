"""`rftd import-verl`: converts a veRL script, command line or Hydra file to an experiment file, without running it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from rftd.daemon.cli.output.terminal import say

if TYPE_CHECKING:
    from rftd.daemon.config.verl.draft import ImportLine
    from rftd.daemon.config.verl.importing import ImportedExperiment
    from rftd.daemon.config.verl.shell.script import ShellChoices

F = TypeVar("F", bound=Callable[..., Any])
"""Type of the decorated function."""
_AFTER: Final = "rftd.import_verl.after"
"""Key of the words after `--` in click's context."""


def _lines_option(name: str, parameter: str, text: str) -> Callable[[F], F]:
    """Builds a repeatable option naming lines of the script."""
    return click.option(name, parameter, type=click.IntRange(min=1), multiple=True, metavar="LINE", help=text)


class _WithCommandLine(click.Command):
    """A command with another program's command line after `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # click would add the words to the arguments, hiding whether the first one is a file or a program.
        """Sets the words after `--` aside, and parses the others."""
        if "--" in args:
            at = args.index("--")
            ctx.meta[_AFTER] = args[at + 1 :]
            args = args[:at]
        return super().parse_args(ctx, args)


@click.command("import-verl", cls=_WithCommandLine, options_metavar="[OPTIONS]")
@click.argument("file", required=False, metavar="[FILE] [-- KEY=VALUE ...]")
@click.option("-o", "--output", metavar="FILE", help="Write the experiment file there, not on standard output.")
@click.option("--report", metavar="FILE", help="Write the report there, not on standard error.")
@click.option(
    "--sync-offset",
    type=click.IntRange(0, 1000),
    default=0,
    help="Steps that explorers are ahead: 0 as veRL, on policy; 1 overlaps them with training.",
)
@click.option(
    "--assume",
    "assumed",
    multiple=True,
    metavar="NAME=VALUE",
    help="Value of a variable of the script, wherever it is read; repeatable.",
)
@_lines_option(
    "--take", "taken", "Take the branch of an `if` or `case` that this line of the script is in; repeatable."
)
@_lines_option("--skip", "skipped", "Do not take the branch that this line is in; repeatable.")
@click.option(
    "--config-dir",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the configurations that --config-name and `defaults` name.",
)
@click.option(
    "--plugin",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Write a package there that makes a reward of the script's custom_reward_function.",
)
@click.pass_context
def command(
    ctx: click.Context,
    file: str | None,
    output: str | None,
    report: str | None,
    sync_offset: int,
    assumed: tuple[str, ...],
    taken: tuple[int, ...],
    skipped: tuple[int, ...],
    config_dir: Path | None,
    plugin: Path | None,
) -> None:
    """Convert a veRL run to an experiment file.

    FILE is a shell script with `python3 -m verl.trainer.main_ppo ...`, or a Hydra configuration (.yaml). KEY=VALUE
    arguments after `--` override it; without FILE they are the whole command line. Nothing is run: variables of the
    script are expanded, others become `${oc.env:NAME}`. The report says for each key whether it was mapped, was
    dropped (and why), or needs a person.

    A value that the script sets under a condition, or that only a person can decide, is a gap in the file: `???`, with
    the values that it may have in a comment. `rftd config check` refuses gaps; --assume, --take and --skip decide them.
    """
    words: list[str] = ctx.meta.get(_AFTER, [])
    if file is None and not words:
        raise click.UsageError("give a FILE, or a command line after `--`", ctx=ctx)
    imported = _import_run(file, words, sync_offset, _shell_choices(ctx, assumed, taken, skipped), config_dir)
    if plugin is not None:
        _write_plugin(plugin, imported, Path(file).parent if file else Path())
    _write(output, imported.text, err=False)
    _write(report, "".join(f"{line}\n" for line in (*imported.lines, _outcome_counts(imported.lines))), err=True)


def _write_plugin(folder: Path, imported: ImportedExperiment, beside: Path) -> None:
    """Writes the skeleton of a reward plug-in, with the reward's own file if found."""
    from rftd.daemon.config.verl.reward_plugin import plugin_files

    reward = imported.reward
    if reward is None:
        raise click.UsageError("--plugin: the script gives no custom_reward_function.path that is known")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise click.UsageError(f"--plugin: {folder} is not empty, choose another folder")
        for name, text in plugin_files(reward).items():
            (folder / name).write_text(text, encoding="utf-8")
        reward_file = next((path for path in (beside / reward.path, Path(reward.path)) if path.is_file()), None)
        if reward_file is not None:
            (folder / f"{reward.module}.py").write_bytes(reward_file.read_bytes())
    except OSError as error:
        raise click.UsageError(f"--plugin: {folder} cannot be written: {error.strerror or error}") from None
    missing = "" if reward_file else f"copy {reward.path} to {folder / reward.module}.py, then "
    say(f"{folder}: {missing}pip install {folder}, and write default_reward_fn_type: {reward.function}", err=True)


def _shell_choices(
    ctx: click.Context, assumed: tuple[str, ...], taken_lines: tuple[int, ...], skipped: tuple[int, ...]
) -> ShellChoices:
    """Returns the choices about lines and variables of a script. Raises UsageError for contradictory ones."""
    import re

    from rftd.daemon.config.verl.shell.script import ShellChoices

    wrong = [text for text in assumed if not re.match(r"([A-Za-z_]\w*|[1-9])=", text)]
    if wrong:
        raise click.UsageError(f"--assume {wrong[0]} names no variable: write --assume NAME=VALUE", ctx=ctx)
    if both := sorted({*taken_lines} & {*skipped}):
        raise click.UsageError(f"line {both[0]} is given to --take and to --skip: give it to one of them", ctx=ctx)
    return ShellChoices(dict(text.split("=", 1) for text in assumed), taken_lines, skipped)


def _import_run(
    file: str | None, words: list[str], sync_offset: int, choices: ShellChoices, config_dir: Path | None
) -> ImportedExperiment:
    """Returns the converted run; prints errors and exits with their status."""
    from rftd.daemon.config.issue import ConfigErrors
    from rftd.daemon.config.verl.importing import import_command, import_file

    try:
        if file is None:
            return import_command(words, sync_offset=sync_offset, config_dir=config_dir)
        return import_file(file, words, sync_offset=sync_offset, choices=choices, config_dir=config_dir)
    except ConfigErrors as errors:
        say(str(errors), err=True)
        raise click.exceptions.Exit(errors.exit_status) from None


def _outcome_counts(lines: tuple[ImportLine, ...]) -> str:
    """Returns the number of lines by outcome."""
    from collections import Counter

    counts = Counter(line.outcome for line in lines)
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.items())


def _write(file: str | None, text: str, *, err: bool) -> None:
    """Writes a text to a file, or to standard output or error without one. Raises UsageError."""
    if file is None:
        click.echo(text, nl=False, err=err)
        return
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"{file} cannot be written: {error.strerror or error}") from None
