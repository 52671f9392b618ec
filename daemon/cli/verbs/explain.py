"""`rftd explain`: the meaning of an error code, and the fix: docstring and `remedy` of the error's class."""

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

_MODULES: Final = (
    "rftd.ops.errors",
    "rftd.streams.events.catalogue",
    "rftd.daemon.config.issue",
    "rftd.daemon.http.api.problem",
    "rftd.daemon.http.client.client",
    "rftd.daemon.trust.asker",
    "rftd.daemon.trust.quota",
    "rftd.daemon.trust.token_file",
    "rftd.ops.tls",
    "rftd.storage.queries.cursor",
    "rftd.workers.generation.endpoint.call_error",
)
"""Modules defining errors."""
_BUG: Final = "RFTD-BUG"
"""Code of unexpected exceptions, which have no class."""
_BUG_MEANING: Final = "rftd itself failed, not your input."
"""Meaning of an unexpected exception's code, for people."""
BUG_REMEDY: Final = "Send the report whose path was printed."
"""Remedy shown for an unexpected exception."""


@click.command("explain")
@click.argument("code", required=False)
@shared_options
@click.pass_obj
def command(settings: Settings, code: str | None) -> None:
    """Explain error CODE: what it means, what to do, how programs see it; without CODE, list every code."""
    from rftd.ops.errors import NotFoundError

    kinds_by_code = codes()
    if code is None:
        if settings.machine_readable:
            emit([_json_entry(known_code, kind) for known_code, kind in kinds_by_code.items()], settings)
        else:
            for known_code, kind in kinds_by_code.items():
                say(f"{known_code:<14}  {_first_line(kind)}", indent=16)
        return
    requested_code = code.upper() if code.upper().startswith("RFTD-") else f"RFTD-{code.upper()}"
    if requested_code == _BUG:
        if settings.machine_readable:
            emit({"code": _BUG, "meaning": _BUG_MEANING, "fix": BUG_REMEDY, "exit_status": 70}, settings)
            return
        say(f"{_BUG}\n\n{_BUG_MEANING}\n\nfix: {BUG_REMEDY}\n\nexit status 70")
        return
    if requested_code not in kinds_by_code:
        import difflib

        near = difflib.get_close_matches(requested_code, list(kinds_by_code), n=1)
        raise NotFoundError(
            f"no error code {requested_code!r}", fix=f"did you mean {near[0]}?" if near else "see rftd explain"
        )
    if settings.machine_readable:
        emit(_json_entry(requested_code, kinds_by_code[requested_code]), settings)
        return
    kind = kinds_by_code[requested_code]
    say(f"{requested_code}  {kind.__name__}\n\n{inspect.getdoc(kind)}\n")
    say(f"fix: {kind.remedy}\n")
    say(f"exit status {kind.exit_status}, HTTP status {kind.http_status}")
    parents = [parent.__name__ for parent in kind.__mro__[1:] if parent.__name__.endswith("Error")]
    say(f"a kind of {', '.join(parents)}")


def codes() -> dict[str, type[RftdError]]:
    """Returns every code with its class, in the order of the codes."""
    from rftd.daemon.http.client.errors import known_errors

    for name in _MODULES:
        importlib.import_module(name)
    kinds_by_code: dict[str, type[RftdError]] = {}
    for kind in known_errors():
        # `setdefault`, with parents first: of two classes with one code, the more general one explains it.
        if kind.__module__ in sys.modules and "code" in vars(kind):
            kinds_by_code.setdefault(kind.code, kind)
    return dict(sorted(kinds_by_code.items()))


def _first_line(kind: type[RftdError]) -> str:
    """Returns the first line of the class's docstring."""
    return (kind.__doc__ or "").partition("\n")[0]


def _json_entry(code: str, kind: type[RftdError]) -> dict[str, Any]:
    """Returns an error class as JSON."""
    return {
        "code": code,
        "name": kind.__name__,
        "meaning": inspect.getdoc(kind),
        "fix": kind.remedy,
        "exit_status": kind.exit_status,
        "http_status": kind.http_status,
    }
