"""An error as shown to its reader: message, position, reason, fix; and the exit status for scripts."""

from __future__ import annotations

import errno
import io
import json
import re
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import click

from rftd.daemon.cli.output.terminal import say
from rftd.ops.clock import Clock, SystemClock, iso
from rftd.ops.errors import OutputError, RftdError, UsageError
from rftd.ops.redaction import redact

BUG: Final = 70
"""Exit status for a bug in rftd."""
_UNWRITABLE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a file system without space."""
INTERRUPTED: Final = 130
"""Exit status after Ctrl-C, as shells report it."""
_JSON_FORMS: Final = ("json", "jsonl")
"""Output formats with errors as JSON."""
_OUTPUT: Final = re.compile(r"-[a-z]*o|--output")
"""An option whose next argument is the output format."""
_JSON: Final = re.compile(r"--json|(-[a-z]*o|--output=)jsonl?")
"""An option choosing JSON by itself."""


def fail(error: BaseException, arguments: Sequence[str], *, clock: Clock | None = None) -> int:
    """Prints `error` on standard error and returns the exit status of the process."""
    # A task group wraps the errors of its tasks; the first RftdError inside is the cause of the others.
    rftd_error = next((leaf for leaf in leaves(error) if isinstance(leaf, RftdError)), None)
    if rftd_error is not None:
        show(rftd_error, as_data=_wants_json(arguments))
        return rftd_error.exit_status
    if any(isinstance(leaf, KeyboardInterrupt) for leaf in leaves(error)):
        return INTERRUPTED
    foreign = next(
        (environment_error for leaf in leaves(error) if (environment_error := _environment_error(leaf)) is not None),
        None,
    )
    if foreign is not None:
        show(foreign, as_data=_wants_json(arguments))
        return foreign.exit_status
    try:
        path = str(write_report(error, arguments, clock or SystemClock()))
        fix = f"send the report {path}"
    except OSError as refused:
        path = None
        fix = f"repeat it where a report can be written ({refused.strerror})"
    message = f"{type(error).__name__}: {error}".splitlines()[0]
    if _wants_json(arguments):
        bug_report = {"code": "RFTD-BUG", "what": message, "field": None, "where": path, "fix": fix}
        click.echo(json.dumps({"exit": BUG, "errors": [bug_report]}, ensure_ascii=False), err=True)
    else:
        say(f"error[RFTD-BUG] {message}\n  this is a bug in rftd, not in your input\n  fix: {fix}", err=True)
    return BUG


def _environment_error(error: BaseException) -> RftdError | None:
    """Returns the RftdError for a failure of the machine or the shell; None for a bug."""
    if isinstance(error, OSError) and error.errno in _UNWRITABLE:
        where = str(error.filename) if error.filename else None
        return OutputError(f"the output could not be written: {error.strerror}", where=where)
    # Python's representation of command-line bytes invalid in the locale's encoding.
    if isinstance(error, UnicodeEncodeError) and any("\udc80" <= character <= "\udcff" for character in error.object):
        message = f"{ascii(error.object)[:100]} has bytes that are no text in this locale"
        return UsageError(message, fix="set LC_ALL=C.UTF-8")
    return None


def misuse(error: click.ClickException, arguments: Sequence[str]) -> int:
    """Prints a command line's error on standard error and returns the exit status of the process."""
    if not _wants_json(arguments):
        text = io.StringIO()
        error.show(text)
        say(text.getvalue().rstrip("\n"), err=True)
        return UsageError.exit_status
    context = getattr(error, "ctx", None)
    verb = context.command_path if isinstance(context, click.Context) else "rftd"
    parameter = getattr(error, "param", None)
    field = getattr(error, "option_name", None)
    if isinstance(parameter, click.Parameter):
        field = parameter.opts[-1] if isinstance(parameter, click.Option) else parameter.human_readable_name
    # A group without a command, whose message is its whole help.
    message = (
        "a command is missing" if isinstance(error, click.exceptions.NoArgsIsHelpError) else error.format_message()
    )
    show(UsageError(message.strip(), where=verb, field=field, fix=f"see {verb} --help"), as_data=True)
    return UsageError.exit_status


def show(error: RftdError, *, as_data: bool) -> None:
    """Prints an error on standard error: for a program as a line of JSON, else in words."""
    if as_data:
        click.echo(as_json(error), err=True)
    else:
        say(as_text(error), err=True)


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yields the errors within a group of errors, at any depth, or the error itself."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


def as_text(error: RftdError) -> str:
    """Returns the error's own text, followed by the commands explaining its codes."""
    codes = list(dict.fromkeys(part_error.code for part_error in parts(error)))
    return f"{error}\n  more: {'; '.join(f'rftd explain {code}' for code in codes[:3])}"


def as_json(error: RftdError) -> str:
    """Returns the error as JSON for a program; standard output stays free for data."""
    part_errors = [
        {
            "code": part_error.code,
            "what": part_error.what,
            "field": part_error.field,
            "where": part_error.where,
            "fix": part_error.fix,
        }
        for part_error in parts(error)
    ]
    return json.dumps({"exit": error.exit_status, "errors": part_errors}, ensure_ascii=False)


def parts(error: RftdError) -> Sequence[RftdError]:
    """Returns the errors combined in an error, for example all errors of a file; else the error alone."""
    several = getattr(error, "errors", ())
    return [part_error for part_error in several if isinstance(part_error, RftdError)] or [error]


def write_report(error: BaseException, arguments: Sequence[str], clock: Clock) -> Path:
    """Writes a report with the traceback, readable only by its owner; values resembling secrets are masked."""
    words = [_masked_argument(word) for word in arguments]
    text = "\n".join(
        [
            f"time: {iso(clock.now_ns())}",
            f"python: {sys.version}",
            f"command: rftd {' '.join(words)}",
            "",
            "".join(traceback.format_exception(error)),
        ]
    )
    # Created with mode 0600: a traceback may contain prompts and paths.
    with tempfile.NamedTemporaryFile(
        "w", prefix="rftd-bug-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
    ) as file:
        file.write(text)
    return Path(file.name)


def _wants_json(arguments: Sequence[str]) -> bool:
    """True if the arguments choose JSON, in any spelling: `-o json`, `-qo json`, `-ojson`, `--output=json`."""
    if any(_JSON.fullmatch(word) for word in arguments):
        return True
    return any(_OUTPUT.fullmatch(flag) and form in _JSON_FORMS for flag, form in pairwise(arguments))


def _masked_argument(word: str) -> str:
    """Returns a word of the command line, masked if it resembles a secret or is the value of a secret's option."""
    name, equals, text = word.rpartition("=")
    return f"{name}={redact(text, name.rpartition('.')[2])}" if equals else str(redact(word))
