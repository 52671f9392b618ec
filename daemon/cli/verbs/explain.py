"""`rftd explain`: the meaning of an error code, and the fix: the docstring and the `remedy` of the error's class."""

from __future__ import annotations

import importlib
import inspect
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from rftd.daemon.cli.output.data import emit
from rftd.daemon.cli.output.terminal import say
from rftd.daemon.cli.settings import Settings, shared_options

if TYPE_CHECKING:
    from rftd.ops.errors import RftdError

_WHERE: Final = (
    "rftd.ops.errors",
    "rftd.streams.events.catalogue",
    "rftd.daemon.config.issue",
    "rftd.daemon.http.api.problem",
    "rftd.daemon.http.client.client",
    "rftd.daemon.trust.asker",
    "rftd.daemon.trust.quota",
    "rftd.daemon.trust.token_file",
    "rftd.ops.tls",
    "rftd.workers.generation.endpoint.call_error",
)
"""Modules that define errors."""
_BUG: Final = "RFTD-BUG"
_BUG_MEANING: Final = "rftd itself failed, not your input."
BUG_REMEDY: Final = "Send the report whose path was printed."


@click.command("explain")
@click.argument("code", required=False)
@shared_options
@click.pass_obj
def command(settings: Settings, code: str | None) -> None:
    """Explain error CODE: what it means, what to do, how programs see it; without CODE, list every code."""
    from rftd.ops.errors import NotFoundError

    found = codes()
    if code is None:
        if settings.machine_readable:
            emit([_entry(known, kind) for known, kind in found.items()], settings)
        else:
            for known, kind in found.items():
                say(f"{known:<14}  {_meaning(kind)}", indent=16)
        return
    wanted = code.upper() if code.upper().startswith("RFTD-") else f"RFTD-{code.upper()}"
    if wanted == _BUG:
        if settings.machine_readable:
            emit({"code": _BUG, "meaning": _BUG_MEANING, "fix": BUG_REMEDY, "exit_status": 70}, settings)
            return
        say(f"{_BUG}\n\n{_BUG_MEANING}\n\nfix: {BUG_REMEDY}\n\nexit status 70")
        return
    if wanted not in found:
        import difflib

        near = difflib.get_close_matches(wanted, list(found), n=1)
        raise NotFoundError(f"no error code {wanted!r}", fix=f"did you mean {near[0]}?" if near else "see rftd explain")
    if settings.machine_readable:
        emit(_entry(wanted, found[wanted]), settings)
        return
    kind = found[wanted]
    say(f"{wanted}  {kind.__name__}\n\n{inspect.getdoc(kind)}\n")
    say(f"fix: {kind.remedy}\n")
    say(f"exit status {kind.exit_status}, HTTP status {kind.http_status}")
    parents = [each.__name__ for each in kind.__mro__[1:] if each.__name__.endswith("Error")]
    say(f"a kind of {', '.join(parents)}")


def codes() -> dict[str, type[RftdError]]:
    """Every code and its class, in the order of the codes."""
    from rftd.daemon.http.client.errors import known_errors

    for name in _WHERE:
        importlib.import_module(name)
    found: dict[str, type[RftdError]] = {}
    for kind in known_errors():
        # `setdefault`, with parents first: of two classes with one code, the more general one explains it.
        if kind.__module__ in sys.modules and "code" in vars(kind):
            found.setdefault(kind.code, kind)
    return dict(sorted(found.items()))


def _meaning(kind: type[RftdError]) -> str:
    return (kind.__doc__ or "").partition("\n")[0]


def _entry(code: str, kind: type[RftdError]) -> dict[str, Any]:
    return {
        "code": code,
        "name": kind.__name__,
        "meaning": inspect.getdoc(kind),
        "fix": kind.remedy,
        "exit_status": kind.exit_status,
        "http_status": kind.http_status,
    }
