"""The options naming the log: `--log URL` for any backend, `--kafka` for addresses of Kafka."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from rftd.ops.errors import UsageError

if TYPE_CHECKING:
    from rftd.streams.log.backend import LogUrl

F = TypeVar("F", bound=Callable[..., Any])
"""Type of the decorated function."""

SHARED: Final = "--kafka"
"""The option recommended by errors for a log shared by several daemons and machines."""
_ENVIRONMENT: Final = "RFTD_KAFKA"
"""Environment variable with the default of `--kafka`."""
_SCHEME: Final = "kafka"
"""Scheme of Kafka URLs."""
_FORMS: Final = "HOST:PORT,... or kafka://..."
"""Accepted forms of `--kafka`, for the help."""


def log_option(function: F) -> F:
    """Adds the options to a verb working without a daemon: `log_at` is None for the embedded log."""
    return _with_log_options(function, f"Kafka cluster that holds the log: {_FORMS}")


def serve_log_option(function: F) -> F:
    """Adds the options to `rftd serve`, likewise."""
    return _with_log_options(
        function, f"Kafka cluster for the log: {_FORMS} Default: the embedded log.", empty_is_none=True
    )


def names_log(options: Mapping[str, Any]) -> bool:
    """True if the options of `rftd serve`, as written, name an external log."""
    return options["log_url"] is not None or bool(options["kafka"])


def worker_log_option(function: F) -> F:
    """Adds the options to a worker, passed as `log_at`, which has no embedded log."""
    unix = click.option("--log", "log_url", help="The log: unix:PATH or kafka://...")

    @functools.wraps(function)
    def placed(*args: Any, log_url: str | None, kafka: str | None, **kwargs: Any) -> Any:
        log_at = _log_url(log_url, kafka)
        if log_at is None:
            raise UsageError("no log is named", field=SHARED, fix=f"give {SHARED} HOST:PORT, or --log unix:PATH")
        return function(*args, log_at=log_at, **kwargs)

    return unix(_shorthand(f"The log: {_FORMS}")(placed))  # type: ignore[return-value]


def _with_log_options(function: F, text: str, *, empty_is_none: bool = False) -> F:
    # Hidden: people type `--kafka`. `--log` exists for backends of other packages, whose names are unknown to this
    # help.
    """Adds `--log` and `--kafka` (with the help `text`), passed as `log_at`; `empty_is_none`: an empty `--kafka` names
    the embedded log.
    """
    hidden = click.option("--log", "log_url", metavar="URL", envvar="RFTD_LOG", hidden=True)

    @functools.wraps(function)
    def placed(*args: Any, log_url: str | None, kafka: str | None, **kwargs: Any) -> Any:
        return function(*args, log_at=_log_url(log_url, (kafka or None) if empty_is_none else kafka), **kwargs)

    return hidden(_shorthand(text)(placed))  # type: ignore[return-value]


def _shorthand(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns the decorator adding `--kafka` with the help `text`."""
    return click.option(SHARED, "kafka", metavar="URL", envvar=_ENVIRONMENT, help=text)


def _log_url(url: str | None, kafka: str | None) -> LogUrl | None:
    """Returns the named log; None for the embedded log. Raises UsageError for a URL without a backend."""
    from rftd.streams.log.backend import LogUrl, log_url

    if url is not None:
        return log_url(url)
    return LogUrl(_SCHEME, kafka) if kafka is not None else None
