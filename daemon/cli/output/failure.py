"""An error as its reader sees it: what, where, why, a fix; and the exit status that a script sees."""

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
_UNWRITABLE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
INTERRUPTED: Final = 130
_JSON_FORMS: Final = ("json", "jsonl")
_OUTPUT: Final = re.compile(r"-[a-z]*o|--output")
_JSON: Final = re.compile(r"--json|(-[a-z]*o|--output=)jsonl?")


def fail(error: BaseException, arguments: Sequence[str], *, clock: Clock | None = None) -> int:
    """Prints `error` on standard error and returns the exit status of the process."""
    # A task group wraps what its tasks raise; the first error of ours in it is the reason, the others follow from it.
    known = next((leaf for leaf in leaves(error) if isinstance(leaf, RftdError)), None)
    if known is not None:
        show(known, as_data=_wants_json(arguments))
        return known.exit_status
    if any(isinstance(leaf, KeyboardInterrupt) for leaf in leaves(error)):
        return INTERRUPTED
    foreign = next((found for leaf in leaves(error) if (found := _of_surroundings(leaf)) is not None), None)
    if foreign is not None:
        show(foreign, as_data=_wants_json(arguments))
        return foreign.exit_status
    try:
        path = str(write_report(error, arguments, clock or SystemClock()))
        fix = f"send the report {path}"
    except OSError as refused:
        path = None
        fix = f"repeat it where a report can be written ({refused.strerror})"
    what = f"{type(error).__name__}: {error}".splitlines()[0]
    if _wants_json(arguments):
        part = {"code": "RFTD-BUG", "what": what, "field": None, "where": path, "fix": fix}
        click.echo(json.dumps({"exit": BUG, "errors": [part]}, ensure_ascii=False), err=True)
    else:
        say(f"error[RFTD-BUG] {what}\n  this is a bug in rftd, not in your input\n  fix: {fix}", err=True)
    return BUG


def _of_surroundings(error: BaseException) -> RftdError | None:
    """The error of ours for what the machine or the shell did; None for a bug."""
    if isinstance(error, OSError) and error.errno in _UNWRITABLE:
        where = str(error.filename) if error.filename else None
        return OutputError(f"what was to be written could not be: {error.strerror}", where=where)
    # How Python keeps bytes of the command line that are no text in the encoding of the locale.
    if isinstance(error, UnicodeEncodeError) and any("\udc80" <= each <= "\udcff" for each in error.object):
        what = f"{ascii(error.object)[:100]} has bytes that are no text in this locale"
        return UsageError(what, fix="set LC_ALL=C.UTF-8")
    return None


def misuse(error: click.ClickException, arguments: Sequence[str]) -> int:
    """Prints what is wrong with a command line on standard error and returns the exit status of the process."""
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
    what = "a command is missing" if isinstance(error, click.exceptions.NoArgsIsHelpError) else error.format_message()
    show(UsageError(what.strip(), where=verb, field=field, fix=f"see {verb} --help"), as_data=True)
    return UsageError.exit_status


def show(error: RftdError, *, as_data: bool) -> None:
    """Prints an error on standard error: for a program as one line of JSON, else in words."""
    if as_data:
        click.echo(as_json(error), err=True)
    else:
        say(as_text(error), err=True)


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors within a group of errors, at any depth, or the error itself."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


def as_text(error: RftdError) -> str:
    """The error in its own words, then where to read more."""
    codes = list(dict.fromkeys(part.code for part in parts(error)))
    return f"{error}\n  more: {'; '.join(f'rftd explain {code}' for code in codes[:3])}"


def as_json(error: RftdError) -> str:
    """The error for a program; standard output stays free for data."""
    found = [
        {"code": part.code, "what": part.what, "field": part.field, "where": part.where, "fix": part.fix}
        for part in parts(error)
    ]
    return json.dumps({"exit": error.exit_status, "errors": found}, ensure_ascii=False)


def parts(error: RftdError) -> Sequence[RftdError]:
    """The errors that one error stands for: everything wrong with a file, for example."""
    several = getattr(error, "errors", ())
    return [part for part in several if isinstance(part, RftdError)] or [error]


def write_report(error: BaseException, arguments: Sequence[str], clock: Clock) -> Path:
    """A file with the traceback, readable by its owner only; values that look secret are masked."""
    words = [_masked(word) for word in arguments]
    text = "\n".join(
        [
            f"time: {iso(clock.now_ns())}",
            f"python: {sys.version}",
            f"command: rftd {' '.join(words)}",
            "",
            "".join(traceback.format_exception(error)),
        ]
    )
    # Of mode 0600, as this function makes files: a traceback may hold prompts and paths.
    with tempfile.NamedTemporaryFile(
        "w", prefix="rftd-bug-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
    ) as file:
        file.write(text)
    return Path(file.name)


def _wants_json(arguments: Sequence[str]) -> bool:
    """True if the words choose JSON, however the option is spelt: `-o json`, `-qo json`, `-ojson`, `--output=json`."""
    if any(_JSON.fullmatch(word) for word in arguments):
        return True
    return any(_OUTPUT.fullmatch(flag) and form in _JSON_FORMS for flag, form in pairwise(arguments))


def _masked(word: str) -> str:
    name, equals, value = word.rpartition("=")
    return f"{name}={redact(value, name.rpartition('.')[2])}" if equals else str(redact(word))
