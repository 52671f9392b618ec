"""The arguments of several verbs: NAME, completed from the daemon's list; --request-id, --reason; a page of a list."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from rftd.daemon.cli.settings import current

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rftd.daemon.config.loading import Submission
    from rftd.workers.devices.host import Host


F = TypeVar("F", bound=Callable[..., Any])
"""Type of the decorated function."""

# A shell completing a word blocks until the answer.
_TIMEOUT_S: Final = 0.3
"""Maximum seconds to wait for the daemon's list during completion."""


def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Returns names with this beginning; silent and quick if no daemon answers."""
    # urllib and not httpx, whose import alone would be noticeable with every Tab.
    from http.client import HTTPException
    from urllib.request import Request, urlopen

    from click.shell_completion import CompletionItem

    from rftd.daemon.http.client.address import find_address
    from rftd.ops.errors import RftdError

    try:
        address = find_address(current(ctx), os.environ)
        url = f"{address.url}/v1/experiments?limit=200"
        request = Request(url, headers=address.headers)  # noqa: S310 - http(s) only
        with urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
            summaries: list[dict[str, Any]] = json.load(answer)["items"]
    except (OSError, HTTPException, ValueError, KeyError, RftdError):
        return []
    names = dict.fromkeys(str(summary["name"]) for summary in summaries)
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


experiment_argument = click.argument("name", shell_complete=complete)
"""Adds the argument NAME, completed from the daemon's list."""
optional_experiment_argument = click.argument("name", required=False, shell_complete=complete)
"""Adds the argument NAME, which may be missing."""
experiments_argument = click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete)
"""Adds the argument NAME..., one or more, passed as `names`."""
request_id_option = click.option(
    "--request-id", metavar="ID", help="Idempotency key: repeated with the same ID, a command changes nothing."
)
"""Adds the option `--request-id`, passed as `request_id`."""
reason_option = click.option("--reason", default="", help="Reason, kept with the event.")
"""Adds the option `--reason`, passed as `reason`."""


def page_options(function: F) -> F:
    """Adds `--limit` and `--cursor` of a list."""
    limit = click.option(
        "-n", "--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Maximum number of lines."
    )
    return limit(click.option("--cursor", metavar="TEXT", help="Continue behind the page before.")(function))


def steps_named(text: str | None) -> tuple[int | None, int | None]:
    """Returns the first and the last step of `--step`, each None if open. Raises BadParameter."""
    if text is None:
        return None, None
    match = re.fullmatch(r"(\d*)(:?)(\d*)", text)
    if match is None or not (match[1] or match[3]):
        raise click.BadParameter(f"{text!r} is not a range of steps: write 3, 3:7, 3: or :7", param_hint="--step")
    first = int(match[1]) if match[1] else None
    last = int(match[3]) if match[3] else (None if match[2] else first)
    return first, last


def read_experiment(file: str) -> tuple[str, str]:
    """Returns the text of FILE, or of standard input for `-`, and its name in errors. Raises ConfigErrors."""
    from rftd.daemon.config.loading import read_stream, read_text

    if file == "-":
        return read_stream(sys.stdin.buffer, "<stdin>"), "<stdin>"
    return read_text(Path(file)), file


def load_experiment(text: str, origin: str, overrides: tuple[str, ...], host: Host, drafts: bool) -> Submission:
    """Loads the submission for workers on `host`; see `rftd.daemon.config.loading.load_text`. Raises ConfigErrors."""
    from rftd.daemon.config.loading import load_text

    return load_text(text, origin, overrides=overrides, host=host, drafts=drafts)


def bounds_of(text: str | None, option: str) -> tuple[float | None, float | None]:
    """Returns inclusive bounds: a strict bound is replaced by the next representable number."""
    if text is None:
        return None, None
    match = re.fullmatch(r"\s*(>=|<=|>|<|=)?\s*(-?\d+(?:\.\d+)?)\s*", text)
    if match is None:
        raise click.BadParameter(f"{text!r} is no comparison: write '>0.8', '<=2' or '=1'", param_hint=option)
    sign = match[1] or "="
    bound = float(match[2])
    if sign in (">", ">="):
        return (bound if sign == ">=" else math.nextafter(bound, math.inf)), None
    if sign in ("<", "<="):
        return None, (bound if sign == "<=" else math.nextafter(bound, -math.inf))
    return bound, bound
