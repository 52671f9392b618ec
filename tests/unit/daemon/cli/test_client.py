"""The client against a daemon, and against everything else that may listen at its address."""

from __future__ import annotations

import json
import os
import ssl
import time
from pathlib import Path

import msgspec
import pytest
from synthetic.daemon.command_line import Rftd, Served
from synthetic.daemon.stranger import STRANGE, Said, Stranger
from synthetic.daemon.terminal import Terminal
from synthetic.until import PATIENCE_S

from rftd.daemon.cli.settings import Settings
from rftd.daemon.cli.verbs.watch import follow_to_end
from rftd.daemon.http.client.address import find_daemon, trusted_by
from rftd.daemon.http.client.client import Client, follow
from rftd.daemon.http.client.errors import SeveralErrors, error_of, kind_of, known_errors
from rftd.daemon.http.client.page_feed import Away, PageFeed
from rftd.daemon.http.views import experiments
from rftd.ops.clock import SystemClock, iso
from rftd.ops.errors import (
    ConfigError,
    ConflictError,
    LogFullError,
    NotFoundError,
    RftdError,
    UnreachableError,
    UsageError,
    WaitTimeoutError,
)

URL = "http://here:1"


@pytest.mark.parametrize("said", STRANGE.values(), ids=STRANGE.keys())
@pytest.mark.parametrize("words", [("ls",), ("watch", "x"), ("pause", "x")])
def test_an_answer_of_another_program_is_no_bug_of_ours(
    rftd: Rftd, stranger: Stranger, said: Said, words: tuple[str, ...]
) -> None:
    stranger.answers = [said]
    answer = rftd("--server", stranger.url, *words)
    assert answer.status == 4
    assert answer.out == ""
    assert "none of rftd's" in answer.err
    assert stranger.url in answer.err
    assert "RFTD-BUG" not in answer.err


@pytest.mark.parametrize(
    ("given", "environ", "endpoint", "url"),
    [
        ("http://a:1", {"RFTD_SERVER": "http://b:2"}, '{"url": "http://c:3"}', "http://a:1"),
        (None, {"RFTD_SERVER": "http://b:2"}, '{"url": "http://c:3"}', "http://b:2"),
        (None, {}, '{"url": "http://c:3"}', "http://c:3"),
        ("http://a:1/", {}, None, "http://a:1"),
        ("a:1", {}, None, "http://a:1"),
        ("a", {}, None, "http://a"),
        ("https://a/rftd/", {}, None, "https://a/rftd"),
        ("http://[::1]:7070", {}, None, "http://[::1]:7070"),
    ],
)
def test_where_the_daemon_is(
    tmp_path: Path, given: str | None, environ: dict[str, str], endpoint: str | None, url: str
) -> None:
    if endpoint is not None:
        (tmp_path / "endpoint.json").write_text(endpoint)
    assert find_daemon(Settings(server=given, data=str(tmp_path)), environ) == url


@pytest.mark.parametrize(
    "url",
    ["ftp://a", "http://", "https://", "://", "http://[::1", "http://a:x", "http://a:70000", "http:///path", "a b:c"],
)
def test_what_is_no_address_is_a_usage_error(url: str) -> None:
    with pytest.raises(UsageError, match="is not the address of a daemon") as raised:
        find_daemon(Settings(server=url), {})
    assert raised.value.field == "--server"


@pytest.mark.parametrize("url", ["http://a/\x00", "http://" + "a" * 80 + "/", "http://a..b:1"])
def test_an_address_that_cannot_be_asked_is_a_usage_error_too(rftd: Rftd, url: str) -> None:
    said = rftd("--server", url, "ls")
    assert said.status == 2
    assert "is not the address of a daemon" in said.err


@pytest.mark.parametrize("token", ["t\u00f6ken", "two\nlines", "tab\there", "\x7f"])
def test_a_token_that_no_header_can_carry_is_named_and_not_shown(
    rftd: Rftd, stranger: Stranger, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    stranger.answers = [Said(200, b"{}")]
    monkeypatch.setenv("RFTD_TOKEN", token)
    said = rftd("--server", stranger.url, "ls")
    assert said.status == 2
    assert "RFTD_TOKEN" in said.err
    assert token not in said.err
    assert stranger.asked == []


def test_a_token_travels_with_every_request_and_a_key_with_every_command(
    rftd: Rftd, stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger.answers = [Said(404, b"")]
    monkeypatch.setenv("RFTD_TOKEN", "s3cret")
    for words in (("ls",), ("pause", "x"), ("pause", "x"), ("watch", "x")):
        rftd("--server", stranger.url, *words)
    assert {headers["authorization"] for _, _, headers in stranger.asked} == {"Bearer s3cret"}
    keys = [headers["idempotency-key"] for method, _, headers in stranger.asked if method == "POST"]
    assert len(keys) == 2
    assert keys[0] != keys[1], "each command is one of its own"
    assert not any("idempotency-key" in headers for method, _, headers in stranger.asked if method == "GET")
    monkeypatch.setenv("RFTD_TOKEN", "")
    stranger.asked.clear()
    rftd("--server", stranger.url, "ls")
    assert "authorization" not in stranger.asked[0][2]


def test_no_proxy_of_the_environment_stands_between(
    rftd: Rftd, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert rftd("get", "small").status == 0


def problem(**fields: object) -> bytes:
    body: dict[str, object] = {
        "type": "urn:x",
        "title": "t",
        "status": 409,
        "detail": "it is over",
        "code": "RFTD-CON-001",
    }
    return msgspec.json.encode(body | fields)


@pytest.mark.parametrize(
    ("kind", "status"),
    [(kind, kind.http_status) for kind in known_errors() if kind.__module__ == RftdError.__module__],
)
def test_an_error_of_the_daemon_is_the_same_error_here(kind: type[RftdError], status: int) -> None:
    body = problem(code=kind.code, status=status, field="f", where="w", fix="do it")
    error = error_of(status, body, URL)
    assert error.code == kind.code
    assert isinstance(error, kind)
    assert (error.what, error.field, error.where, error.fix) == ("it is over", "f", "w", "do it")
    assert error.exit_status == kind.exit_status


@pytest.mark.parametrize(
    ("status", "kind", "exit_status"),
    [
        (404, NotFoundError, 3),
        (409, ConflictError, 5),
        (503, UnreachableError, 4),
        (504, WaitTimeoutError, 6),
        (422, UsageError, 2),
        (400, UsageError, 2),
        (418, UsageError, 2),
        (500, RftdError, 1),
        (507, RftdError, 1),
    ],
)
def test_a_code_of_a_newer_daemon_means_what_its_status_means(
    status: int, kind: type[RftdError], exit_status: int
) -> None:
    error = error_of(status, problem(code=f"RFTD-NEW-{status}"), URL)
    assert isinstance(error, kind)
    assert (error.code, error.exit_status) == (f"RFTD-NEW-{status}", exit_status)
    assert f"RFTD-NEW-{status}" in str(error)
    assert kind_of("", status).code == kind.code


def test_several_errors_are_each_shown_with_their_place() -> None:
    parts = [
        {"code": ConfigError.code, "what": "unknown field", "field": "a", "where": "x.yaml:1"},
        {"code": LogFullError.code, "what": "no space", "fix": "free some"},
    ]
    error = error_of(422, problem(errors=parts), URL)
    assert isinstance(error, SeveralErrors)
    assert [type(part) for part in error.errors] == [ConfigError, LogFullError]
    assert error.exit_status == 2
    first, second = str(error).split("\n\n")
    assert first == f"error[{ConfigError.code}] a: unknown field\n  --> x.yaml:1"
    assert second == f"error[{LogFullError.code}] no space\n  fix: free some"


@pytest.fixture
def page(served: Served) -> bytes:
    """The page of the experiment `small`, which has ended, as one line."""
    with Client(Settings(server=served.url), {}) as client:
        return json.dumps(client.ask(experiments.one, name="small").plain()).encode()


EVENTS = {"Content-Type": "text/event-stream; charset=utf-8"}


def running(page: bytes) -> bytes:
    changed = json.loads(page)
    changed["experiment"]["summary"]["state"] = "running"
    return json.dumps(changed).encode()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds between two attempts of `follow`, which does not wait for them here."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    return slept


def event(kind: str, data: bytes) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"


def test_a_stream_ends_with_its_experiment_and_passes_over_what_is_no_page(stranger: Stranger, page: bytes) -> None:
    body = (
        b": still here\n\n"
        + event("news", b"{}")
        + event("page", page)
        + event("end", b'"completed"')
        + event("page", b"?")
    )
    stranger.answers = [Said(200, body, EVENTS)]
    with Client(Settings(server=stranger.url), {}) as client:
        [only] = client.pages("small")
    assert only.value.experiment.summary.name == "small"
    assert only.plain() == json.loads(page)


def test_a_page_that_cannot_be_read_ends_the_stream_with_a_reason(stranger: Stranger) -> None:
    stranger.answers = [Said(200, event("page", b'{"experiment": 1}'), EVENTS)]
    with (
        Client(Settings(server=stranger.url), {}) as client,
        pytest.raises(UnreachableError, match="none of rftd's"),
    ):
        list(client.pages("small"))


def test_a_daemon_that_is_restarted_is_waited_for_and_asked_for_the_same_experiment(
    stranger: Stranger, page: bytes, pauses: list[float]
) -> None:
    id = json.loads(page)["experiment"]["summary"]["id"]
    stranger.answers = [
        Said(200, event("page", running(page)), EVENTS),  # the stream is cut off
        Said(503, problem(status=503, code="RFTD-NET-001")),
        Said(200, b"", EVENTS),
        Said(200, event("page", page) + event("end", b'"completed"'), EVENTS),
    ]
    with Client(Settings(server=stranger.url), {}) as client:
        states = [each.value.experiment.summary.state for each in follow(client, "small", after="p@1", patience_s=1e6)]
    assert states == ["running", "completed"]
    paths = [path for _, path, _ in stranger.asked]
    assert "small" in paths[0]
    assert "after=p%401" in paths[0]
    assert all(id in path for path in paths[1:]), "another experiment may have taken the name meanwhile"
    assert not any("after=" in path for path in paths[1:])
    assert len(pauses) == 3
    assert pauses == sorted(pauses), "each wait is at least as long as the one before"


def test_a_restarted_daemon_is_waited_for_by_who_follows_an_id(
    stranger: Stranger, page: bytes, pauses: list[float]
) -> None:
    """As `rftd submit --wait` does, which knows the id at once."""
    id = json.loads(page)["experiment"]["summary"]["id"]
    stranger.answers = [
        Said(200, event("page", running(page)), EVENTS),
        Said(503, problem(status=503, code="RFTD-NET-001")),
        Said(200, event("page", page) + event("end", b'"completed"'), EVENTS),
    ]
    with Client(Settings(server=stranger.url), {}) as client:
        states = [each.value.experiment.summary.state for each in follow(client, id, patience_s=1e6)]
    assert states == ["running", "completed"]


def test_reconnecting_begins_when_the_daemon_goes_and_not_with_the_last_page(
    stranger: Stranger, page: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    stranger.answers = [
        Said(200, event("page", running(page)), EVENTS),
        Said(503, problem(status=503, code="RFTD-NET-001")),
        Said(200, event("page", page) + event("end", b'"completed"'), EVENTS),
    ]
    states = []
    with Client(Settings(server=stranger.url), {}) as client:
        for each in follow(client, "small", patience_s=30.0):
            states.append(each.value.experiment.summary.state)
            now_s += 3600.0  # the page does not change for an hour
    assert states == ["running", "completed"]


def test_a_daemon_that_stays_away_is_given_up(stranger: Stranger, page: bytes, pauses: list[float]) -> None:
    stranger.answers = [
        Said(200, event("page", running(page)), EVENTS),
        Said(503, problem(status=503, code="RFTD-NET-001", detail="the log is away")),
    ]
    with Client(Settings(server=stranger.url), {}) as client, pytest.raises(UnreachableError, match="the log is away"):
        list(follow(client, "small", patience_s=-1.0))
    assert len(pauses) == 1


def test_before_the_first_page_nothing_is_waited_for(stranger: Stranger, pauses: list[float]) -> None:
    stranger.answers = [Said(503, problem(status=503, code="RFTD-NET-001"))]
    with Client(Settings(server=stranger.url), {}) as client, pytest.raises(UnreachableError):
        list(follow(client, "small", patience_s=1e6))
    assert pauses == []


def test_who_follows_is_told_that_no_daemon_answers(stranger: Stranger, page: bytes, pauses: list[float]) -> None:
    stranger.answers = [
        Said(200, event("page", running(page)), EVENTS),
        Said(503, problem(status=503, code="RFTD-NET-001")),
        Said(503, problem(status=503, code="RFTD-NET-001")),
        Said(200, event("page", page) + event("end", b'"completed"'), EVENTS),
    ]
    with (
        Client(Settings(server=stranger.url), {}) as client,
        PageFeed(client, "small", after=None, patience_s=1e6) as feed,
    ):
        news = [each for each in feed.each(PATIENCE_S) if each is not None]
    assert ["away" if isinstance(each, Away) else each.value.experiment.summary.state for each in news] == [
        *("running", "away", "away", "completed"),
    ]


def test_a_watch_without_a_terminal_prints_only_lines_that_changed(
    stranger: Stranger, page: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    same = event("page", running(page))
    stranger.answers = [Said(200, same * 3 + event("page", page) + event("end", b'"completed"'), EVENTS)]
    settings = Settings(server=stranger.url)
    begun = iso(SystemClock().now_ns())
    with Client(settings, {}) as client:
        assert follow_to_end(client, "small", settings) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[2] for line in lines] == ["running", "completed"]
    assert all(line[0] >= begun for line in lines)  # the time of the news, not of the last change of state


def test_a_watch_in_a_terminal_says_that_no_daemon_answers(stranger: Stranger, page: bytes, tmp_path: Path) -> None:
    stranger.answers = [
        Said(200, event("page", running(page)), EVENTS),
        Said(503, problem(status=503, code="RFTD-NET-001", detail="the log is away")),
    ]
    line = ("watch", "small", "--server", stranger.url, "--timeout", "10ms")
    [drawn] = Terminal(80, 24).run([line], cwd=tmp_path, environ=dict(os.environ))
    assert drawn.status == 4
    assert f"no daemon answers at {stranger.url}" in drawn.text
    assert "this page is 0 s old. Waiting up to 0 s for one" in " ".join(drawn.text.split())
    assert "error[RFTD-NET-001] the log is away" in drawn.text
    assert drawn.wider_than(80) == []


def test_a_refusal_after_a_restart_is_the_end_of_it(stranger: Stranger, page: bytes, pauses: list[float]) -> None:
    stranger.answers = [
        Said(200, event("page", running(page)), EVENTS),
        Said(404, problem(status=404, code="RFTD-NOF-001", detail="no such experiment")),
    ]
    with Client(Settings(server=stranger.url), {}) as client, pytest.raises(NotFoundError, match="no such experiment"):
        list(follow(client, "small", patience_s=1e6))


def test_certificates_are_read_only_for_an_address_that_needs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    assert trusted_by("HTTPS://host") is True
    nobody = trusted_by("http://127.0.0.1:7070")
    assert isinstance(nobody, ssl.SSLContext)
    assert nobody.verify_mode == ssl.CERT_REQUIRED
    assert nobody.get_ca_certs() == []
