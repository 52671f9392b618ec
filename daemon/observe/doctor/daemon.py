"""Checks of the expected daemon: port, readiness, token, clock, metrics and keeping rules."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from rftd.daemon.cli.output.quantity import lasting, size
from rftd.daemon.cli.settings import Settings
from rftd.daemon.http.client.address import ENDPOINT_FILE, NoDaemonError, OtherDaemonError
from rftd.daemon.http.client.client import Client, Readiness, nobody_listens
from rftd.daemon.http.views import experiments
from rftd.daemon.http.views.access import allowances as read_allowances
from rftd.daemon.http.views.access import tokens as read_tokens
from rftd.daemon.http.views.keeping import KeepingRules
from rftd.daemon.http.views.keeping import keeping as read_keeping
from rftd.daemon.http.views.version import version as read_version
from rftd.daemon.trust.token_file import TokenFile, TokenFileError
from rftd.ops.clock import Clock, iso
from rftd.ops.errors import RftdError, UnreachableError, UsageError, WaitTimeoutError
from rftd.ops.health import Diagnosis, Finding
from rftd.ops.releases import release_of

_CHECK = "keeping"
"""Name of the check of keeping rules."""

_TIMEOUT_S: Final = 5.0
"""Maximum seconds to wait for the daemon's answer."""
SKEW_S: Final = 10.0
"""Tolerated clock difference in seconds: larger ones show confusing times; no decision depends on clocks."""
_VARIABLE: Final = "RFTD_TOKEN"
"""Environment variable with the token."""
_UNAUTHENTICATED: Final = "RFTD-API-001"
"""Error code of a refused token."""
_MOST_EXPERIMENTS: Final = 20
"""Maximum number of running experiments whose trackers are checked, newest first."""
_NAMED: Final = 8
"""Number of names shown of an allow-list; further ones are counted."""


def check_keeping(client: Client) -> Iterator[Diagnosis]:
    """Yields findings about the daemon's keeping rules: what they do, and whether they contradict each other."""
    try:
        rules = client.ask(read_keeping).value
    except RftdError:  # a daemon of another release, reported separately
        return
    yield Diagnosis(_CHECK, "ok", f"{_payload_rule(rules)}; {_archive_rule(rules)}")
    if rules.archives_lack_payloads:
        conflict = "tokens are dropped before archiving: archives lack them, and rftd restore cannot restore them"
        fix = "drop tokens later than --archive-after, or not at all: archiving removes them from the log"
        yield Diagnosis(_CHECK, "warn", conflict, fix)
    if rules.log_excess_bytes and rules.drop_payloads_above_bytes is not None:
        limit = size(rules.drop_payloads_above_bytes)
        conflict = f"the log takes {size(rules.log_excess_bytes)} more than {limit}, and no more tokens may be dropped"
        fix = "archive or remove ended experiments, end forks, or serve with a larger --drop-payloads-above"
        yield Diagnosis(_CHECK, "warn", conflict, fix)


def _payload_rule(rules: KeepingRules) -> str:
    """Returns in words when payloads are dropped from the log."""
    whens = []
    if rules.payloads == "until-trained":
        whens.append("once they are trained")
    elif rules.payloads == "until-ended":
        whens.append("when an experiment ends")
    if rules.drop_payloads_after_s is not None:
        whens.append(f"{lasting(rules.drop_payloads_after_s)} after the end of an experiment")
    if rules.drop_payloads_above_bytes is not None:
        whens.append(f"while the log takes more than {size(rules.drop_payloads_above_bytes)}, longest ended first")
    if not whens:
        return "tokens stay in the log until their experiment is archived or removed"
    return f"tokens leave the log {', and '.join(whens)}: these steps can then be neither replayed nor forked"


def _archive_rule(rules: KeepingRules) -> str:
    """Returns in words when files of ended experiments are archived."""
    if rules.archive_after_s is None:
        return "files are archived only on request"
    return f"files are archived {lasting(rules.archive_after_s)} after the end of an experiment"


def check_daemon(settings: Settings, environ: Mapping[str, str], clock: Clock) -> list[Diagnosis]:
    """Checks that a daemon answers, is ready and accepts the token; without an answer, that its port is free.

    Raises UsageError for an invalid address.
    """
    try:
        client = Client(replace(settings, timeout_s=min(settings.answer_timeout_s, _TIMEOUT_S)), environ)
    except UsageError as error:
        if error.field != _VARIABLE:
            raise
        return [Diagnosis("token", "fail", f"{_VARIABLE}: {error.what}", error.fix or "")]
    except NoDaemonError as error:
        return [Diagnosis("daemon", "warn", error.what, error.fix or "")]
    with client:
        try:
            readiness = client.readiness()
        except (UnreachableError, WaitTimeoutError) as error:
            return list(_absence_findings(client.url, error))
        return [
            *_readiness_findings(client.url, readiness.verdict.checks, ok=readiness.verdict.ok),
            *_clock_findings(client.url, readiness, clock),
            *(_service_findings(client, environ) if readiness.verdict.ok else ()),
        ]


def _absence_findings(url: str, error: RftdError) -> Iterator[Diagnosis]:
    """Yields the findings without a daemon: not started, or its port in use by another program."""
    if isinstance(error, OtherDaemonError):
        yield Diagnosis("daemon", "warn", error.what, error.fix or "")
        return
    if nobody_listens(error):
        yield Diagnosis("daemon", "warn", f"none answers at {url}: {error.what}", "start it: rftd serve")
        yield Diagnosis("port", "ok", f"nothing listens at {url}")
        return
    if isinstance(error, WaitTimeoutError):
        problem = f"somebody listens at {url} and gives no answer: {error.what}"
        yield Diagnosis("daemon", "fail", problem, "see the daemon's log; one that hangs may be ended at any time")
        return
    fix = "give rftd serve another --port, or name the daemon's address with --server"
    yield Diagnosis("port", "fail", f"another program listens at {url}: {error.what}", fix)


def _readiness_findings(url: str, checks: tuple[Finding, ...], *, ok: bool) -> Iterator[Diagnosis]:
    """Yields the findings of a daemon's readiness checks; `ok`: the daemon is ready."""
    if ok:
        yield Diagnosis("daemon", "ok", f"{url} is ready")
    for check in checks:
        reason, _, fix = check.reason.partition("; fix: ")
        if not check.ok:
            waits = "it is not ready" if check.name == "daemon" else f"it is not ready and waits for its {check.name}"
            yield Diagnosis("daemon", "fail", f"{url} answers: {waits}: {reason}", fix or "see the daemon's log")
        elif reason:
            yield Diagnosis("daemon", "warn", f"{url} reports its {check.name}: {reason}", fix)


def _clock_findings(url: str, readiness: Readiness, clock: Clock) -> Iterator[Diagnosis]:
    """Yields the finding about the daemon's clock, possibly another machine's."""
    if readiness.clock_s is None:
        return
    ahead_s = readiness.clock_s - clock.now_ns() / 1e9
    if abs(ahead_s) > SKEW_S:
        way = "ahead of" if ahead_s > 0 else "behind"
        difference = f"the daemon at {url} is {abs(ahead_s):.0f} s {way} this machine's clock"
        yield Diagnosis("clock", "warn", difference, "let both follow one time server (timedatectl set-ntp true)")


def _service_findings(client: Client, environ: Mapping[str, str]) -> Iterator[Diagnosis]:
    """Yields the findings about a ready daemon: token, release, metrics, allow-lists and trackers."""
    try:
        release = client.ask(read_version).value.version
        metrics = client.metrics()
    except RftdError as error:
        if error.code == _UNAUTHENTICATED:
            token = environ.get(_VARIABLE)
            lack = "refuses the one in its folder" if client.has_token else f"{_VARIABLE} is not set"
            refusal = f"refuses the token in {_VARIABLE}" if token else f"asks for a token, and {lack}"
            fix = f"export {_VARIABLE} with a token of this daemon: rftd token add NAME, where it runs"
            yield Diagnosis("token", "fail", f"the daemon at {client.url} {refusal}", fix)
        else:
            yield Diagnosis("daemon", "fail", f"{client.url} fails: {error.what}", error.fix or "see the daemon's log")
        return
    yield from _token_findings(client, environ)
    yield from _allowance_findings(client)
    yield from check_keeping(client)
    yield from _tracker_findings(client)
    mine = release_of("rftd")
    if release != mine:
        mismatch = f"the daemon has release {release}, this program {mine}"
        yield Diagnosis("release", "warn", mismatch, "install one release for both")
    series = sum(1 for line in metrics.splitlines() if line.startswith("rftd_"))
    access = "with a token of role read" if client.has_token else "without a token"
    yield Diagnosis("monitor", "ok", f"{client.url}/metrics has {series} series for Prometheus, {access}")


def _tracker_findings(client: Client) -> Iterator[Diagnosis]:
    """Yields a warning, with the reason, for each tracker of a running experiment unable to write."""
    try:
        listed = client.ask(experiments.listed, state=["running", "paused"], limit=_MOST_EXPERIMENTS).value.items
        pages = [client.ask(experiments.one, name=summary.id).value for summary in listed]
    except RftdError:  # a daemon of another release, reported separately
        return
    waiting = [(page, row) for page in pages for row in page.trackers if row.error]
    for page, row in waiting:
        name = page.experiment.summary.name
        fix = f"see log/tracker_{row.kind}.log in {page.experiment.job_dir}; missed points follow later"
        yield Diagnosis("tracker", "warn", f"{row.kind} of {name} waits: {row.error}", fix)
    count = sum(len(page.trackers) for page in pages)
    if count and not waiting:
        yield Diagnosis("tracker", "ok", f"{count} follow{'s' if count == 1 else ''} the experiments under way")


def _token_findings(client: Client, environ: Mapping[str, str]) -> Iterator[Diagnosis]:
    """Yields the findings about the token in use, and about other tokens visible to it."""
    try:
        token_list = client.ask(read_tokens).value
    except RftdError:  # a daemon of another release, reported separately
        return
    if not client.has_token:
        problem = "not required: the daemon treats everybody as its owner"
        yield Diagnosis("token", "warn", problem, "start it without --unsafe-allow-unauthenticated")
        return
    origin = f"in {_VARIABLE}" if environ.get(_VARIABLE) else "found by itself"
    yield Diagnosis("token", "ok", f"that of {token_list.asker}, with the role {token_list.role}, {origin}")
    for token in token_list.items:
        until = "no end" if token.expires_ns is None else f"until {iso(token.expires_ns)[:16]}"
        usage = (
            f"{token.submitted} of {token.submissions_per_hour} submissions this hour, "
            f"{token.waiting} of {token.queued} in the queue, "
            f"{token.streaming} of {token.streams} streams, {token.connected} of {token.connections} connections"
        )
        yield Diagnosis("tokens", "ok", f"{token.name}: {token.role}, {until}; {usage}")


def _allowance_findings(client: Client) -> Iterator[Diagnosis]:
    """Yields the findings about the daemon's allow-lists: allowed names, and folders that are links or missing."""
    try:
        lists = client.ask(read_allowances).value.items
    except RftdError:  # the token's role is too small
        return
    for allow_list in lists:
        names = ", ".join(allow_list.allows[:_NAMED]) or "nothing"
        more = f" and {len(allow_list.allows) - _NAMED} more" if len(allow_list.allows) > _NAMED else ""
        yield Diagnosis("allowed", "ok", f"{allow_list.line}: everybody but the owner may name {names}{more}")
        for folder in allow_list.faulty:
            problem = (
                f"{allow_list.line}: {folder} does not exist or is reached through a link: nothing below it is allowed"
            )
            yield Diagnosis(
                "allowed", "warn", problem, "make the folder, or give its real path, and restart rftd serve"
            )


def check_tokens(folder: Path) -> list[Diagnosis]:
    """Checks that the token files in the data folder are readable by this user only."""
    file = TokenFile(folder)
    findings = []
    for read in (file.read, file.owner_token):
        try:
            read()
        except FileNotFoundError:  # before the first start
            continue
        except TokenFileError as error:
            findings.append(Diagnosis("tokens", "fail", f"{error.where}: {error.what}", error.fix or error.remedy))
    return findings


def check_endpoint(folder: Path) -> list[Diagnosis]:
    """Checks that the daemon named in the folder is alive."""
    path = folder / ENDPOINT_FILE
    try:
        pid = int(json.loads(path.read_text())["pid"])
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError):
        return [Diagnosis("endpoint", "warn", f"{path} cannot be read", "restart the daemon: it rewrites the file")]
    try:
        # Signal 0 has no effect: the kernel only reports whether the process exists.
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return [Diagnosis("endpoint", "warn", f"{path} names process {pid}, which is gone", "start it: rftd serve")]
    except PermissionError:
        pass  # alive, another user's
    return [Diagnosis("endpoint", "ok", f"process {pid} is alive")]
