"""`TraceOptions`: receiver and share of the spans of a daemon and its workers; `tracing()` is a tracer for a block."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from random import Random
from typing import Final
from urllib.parse import urlsplit

import msgspec

from rftd.ops.clock import Clock
from rftd.ops.errors import ConfigError
from rftd.ops.logs import Logger
from rftd.ops.outbound import web_address
from rftd.ops.releases import release_of
from rftd.ops.tracing.conventions import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION
from rftd.ops.tracing.exporter import Send, SpanExporter
from rftd.ops.tracing.tracer import Tracer

RATIO: Final = 0.01
"""The default share of rollouts and requests that are traced."""
_PATH: Final = "/v1/traces"
"""Path of OTLP's receiver, below its address."""
HEADERS: Final = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")
"""OpenTelemetry's variables with headers that authenticate clients at a receiver."""


class TraceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The receiver of traces, and the share of traces sent to it."""

    url: str
    """The receiver's full address."""
    ratio: float = RATIO
    """Share of traces sampled at their beginning here; errors, weights, checkpoints, evaluations and steps are always
    traced.
    """


def trace_options(url: str | None, ratio: float) -> TraceOptions | None:
    """Returns the checked options; None without a `url`: no tracing. Raises ConfigError."""
    if not url:
        return None
    field = "--traces"
    if url.startswith(("http://", "https://")) and any(mark in url for mark in "@?#"):
        raise ConfigError(
            "the address has a user, a password or parameters, and command lines are no secret",
            field=field,
            fix=f"leave them out, and set {HEADERS[0]} to the header that the receiver asks for",
        )
    try:
        web_address(url, field=field)
    except ConfigError:
        raise ConfigError(
            f"{_shown(url)!r} is not the address of an OTLP receiver", field=field, fix="write http://HOST:4318"
        ) from None
    if _missing():
        raise ConfigError(
            "OpenTelemetry is not installed in this environment", field=field, fix="pip install 'rftd[otel]'"
        )
    bare = urlsplit(url).path in ("", "/")
    return TraceOptions(url=url.rstrip("/") + _PATH if bare else url, ratio=ratio)


@contextmanager
def tracing(options: TraceOptions | None, service: str, *, clock: Clock, logger: Logger) -> Iterator[Tracer | None]:
    """A context with the tracer of the process `service`; None without options.

    At the end remaining spans are sent, for a moment at most.
    """
    if options is None:
        yield None
        return
    exporter = span_exporter(options, service, logger)
    try:
        # A separate random source, seeded by the system: separate from the random numbers of training.
        random = Random(os.urandom(16))  # noqa: S311 - ids of spans are no secret
        yield Tracer(exporter, clock=clock, random=random, ratio=options.ratio)
    finally:
        exporter.close()


def span_exporter(options: TraceOptions, service: str, logger: Logger) -> SpanExporter:
    """Returns an exporter to the receiver named by the options; the SDK is imported on its thread."""
    release = release_of("rftd")
    resource = {
        SERVICE_NAME: f"rftd-{service}",
        SERVICE_VERSION: release,
        SERVICE_INSTANCE_ID: f"{platform.node()}/{os.getpid()}",
    }

    def connect() -> Send:
        from rftd.ops.tracing.otlp import otlp_sender  # here, because it imports the SDK

        return otlp_sender(options.url, resource, release=release)

    return SpanExporter(connect, logger)


def _missing() -> bool:
    """True if OpenTelemetry's SDK or its OTLP exporter is not installed."""
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is None or find_spec("opentelemetry.sdk") is None
    except ModuleNotFoundError:
        return True


def _shown(url: str) -> str:
    """Returns the end of the URL after a possible user and password, at most 80 characters."""
    return url.rpartition("@")[2][:80]
