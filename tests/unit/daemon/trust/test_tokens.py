"""Tokens: kept as digests, taken while they are valid, replaced without a restart."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rftd.daemon.trust.asker import AccessRole
from rftd.daemon.trust.keyring import LINK_S, SESSION_S, Sessions
from rftd.daemon.trust.quota import HOUR_S, Quota, QuotaError, QuotaUses
from rftd.daemon.trust.token_file import TokenFile, TokenFileError
from rftd.daemon.trust.tokens import Bearer, NotTaken, Tokens
from rftd.ops.clock import ManualClock
from rftd.ops.errors import ConflictError, NotFoundError, UsageError
from rftd.ops.logs import logger

DAY_NS = 86_400 * 10**9


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def added(folder: Path, name: str, role: str = "submit", *, expires_ns: int | None = None, **quota: int) -> str:
    return TokenFile(folder).add(name, role, created_ns=0, expires_ns=expires_ns, quota=Quota(**quota))


def tokens_of(folder: Path, clock: ManualClock) -> Tokens:
    return Tokens(folder, clock=clock, logger=logger())


def test_a_token_is_known_by_its_digest_and_kept_nowhere(tmp_path: Path, clock: ManualClock) -> None:
    token = added(tmp_path, "ann")
    bearer = tokens_of(tmp_path, clock).look_up(token)
    assert isinstance(bearer, Bearer)
    assert (bearer.asker.name, bearer.asker.role) == ("ann", AccessRole.SUBMIT)
    for path in tmp_path.iterdir():
        assert token not in path.read_text(), path
        assert path.stat().st_mode & 0o077 == 0, path


def test_the_owners_token_is_made_once_and_is_the_owners(tmp_path: Path, clock: ManualClock) -> None:
    owner = tokens_of(tmp_path, clock).owner_token
    again = Tokens(tmp_path, clock=clock, logger=logger(), from_environ="chosen")
    assert again.owner_token == owner
    for token in (owner, "chosen"):
        bearer = again.look_up(token)
        assert isinstance(bearer, Bearer)
        assert bearer.asker.is_owner


def test_what_is_no_token_is_told_apart_only_inside(tmp_path: Path, clock: ManualClock) -> None:
    expired = added(tmp_path, "old", expires_ns=clock.now_ns() + DAY_NS)
    tokens = tokens_of(tmp_path, clock)
    assert isinstance(tokens.look_up(expired), Bearer)
    clock.advance(DAY_NS / 1e9)
    for token, reason in (
        ("", "missing"),
        ("rftd_foreign", "unknown"),
        (f"{expired}x", "unknown"),
        ("é", "malformed"),
        ("a" * 10_000, "malformed"),
        (expired, "expired"),
    ):
        taken = tokens.look_up(token)
        assert isinstance(taken, NotTaken)
        assert taken.reason == reason


def test_changes_are_taken_without_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    tokens = tokens_of(tmp_path, clock)
    first = added(tmp_path, "ann")
    assert isinstance(tokens.look_up(first), Bearer)
    second = TokenFile(tmp_path).rotate("ann")
    assert isinstance(tokens.look_up(first), NotTaken)
    assert isinstance(tokens.look_up(second), Bearer)
    TokenFile(tmp_path).remove("ann")
    assert isinstance(tokens.look_up(second), NotTaken)
    before = tokens.owner_token
    after = TokenFile(tmp_path).rotate_owner()
    assert isinstance(tokens.look_up(before), NotTaken)
    assert isinstance(tokens.look_up(after), Bearer)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"tokens": [{"name": "ann"}]}', '{"tokens": [], "more": 1}', "\xff"],
)
def test_a_damaged_file_lets_nobody_in_but_the_owner(tmp_path: Path, clock: ManualClock, content: str) -> None:
    token = added(tmp_path, "ann")
    tokens = tokens_of(tmp_path, clock)
    assert isinstance(tokens.look_up(token), Bearer)
    TokenFile(tmp_path).path.write_text(content)
    assert isinstance(tokens.look_up(token), NotTaken)
    assert isinstance(tokens.look_up(tokens.owner_token), Bearer)
    assert str(TokenFile(tmp_path).path) in tokens.trouble
    with pytest.raises(TokenFileError):
        added(tmp_path, "bob")
    assert TokenFile(tmp_path).path.read_text() == content, "what a person may still repair is not written over"


def test_an_entry_of_a_larger_role_than_any_token_has_is_no_entry(tmp_path: Path, clock: ManualClock) -> None:
    token = added(tmp_path, "ann")
    path = TokenFile(tmp_path).path
    content = json.loads(path.read_text())
    for change in ({"role": "owner"}, {"name": "owner"}, {"name": "../x"}, {"sha256": "0"}):
        path.write_text(json.dumps({"tokens": [{**content["tokens"][0], **change}]}))
        assert isinstance(tokens_of(tmp_path, clock).look_up(token), NotTaken), change


def test_a_file_that_others_may_touch_is_not_believed(tmp_path: Path, clock: ManualClock) -> None:
    token = added(tmp_path, "ann")
    path = TokenFile(tmp_path).path
    for mode in (0o640, 0o604, 0o660):
        path.chmod(mode)
        assert isinstance(tokens_of(tmp_path, clock).look_up(token), NotTaken)
    path.chmod(0o600)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert isinstance(tokens_of(tmp_path, clock).look_up(token), NotTaken)
    owner = TokenFile(tmp_path).owner_path
    owner.chmod(0o644)
    with pytest.raises(TokenFileError, match="other users"):
        tokens_of(tmp_path, clock)


@pytest.mark.parametrize(
    "name", ["", "A", "-rf", "a b", "a/b", "..", "owner", "producer", "x" * 65, "a\n", "a-", "é", "a@2"]
)
def test_a_name_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        added(tmp_path, name)
    assert not TokenFile(tmp_path).path.exists()


def test_one_name_is_one_token(tmp_path: Path) -> None:
    added(tmp_path, "ann")
    with pytest.raises(ConflictError, match="already"):
        added(tmp_path, "ann")
    for act in (TokenFile(tmp_path).remove, TokenFile(tmp_path).rotate):
        with pytest.raises(NotFoundError):
            act("bob")
    assert [entry.name for entry in TokenFile(tmp_path).read()] == ["ann"]


def test_a_link_signs_in_once_and_in_time(tmp_path: Path, clock: ManualClock) -> None:
    token = added(tmp_path, "ann", "read")
    tokens = tokens_of(tmp_path, clock)
    sessions = Sessions(tokens, clock=clock)
    ann = tokens.look_up(token)
    assert isinstance(ann, Bearer)
    code = sessions.new_link(ann.digest)
    cookie = sessions.open(code)
    assert cookie is not None
    assert sessions.open(code) is None, "a link is good for one browser"
    assert sessions.open("guess") is None
    bearer = sessions.look_up(cookie)
    assert isinstance(bearer, Bearer)
    assert bearer.asker == ann.asker, "a session has the rights of the token that made its link"
    late = sessions.new_link(ann.digest)
    clock.advance(LINK_S)
    assert sessions.open(late) is None
    clock.advance(SESSION_S)
    assert isinstance(sessions.look_up(cookie), NotTaken)


def test_a_session_ends_with_its_token(tmp_path: Path, clock: ManualClock) -> None:
    token = added(tmp_path, "ann")
    tokens = tokens_of(tmp_path, clock)
    sessions = Sessions(tokens, clock=clock)
    ann = tokens.look_up(token)
    assert isinstance(ann, Bearer)
    cookie, unused = sessions.open(sessions.new_link(ann.digest)), sessions.new_link(ann.digest)
    assert cookie is not None
    TokenFile(tmp_path).rotate("ann")
    assert isinstance(sessions.look_up(cookie), NotTaken)
    assert sessions.open(unused) is None


def test_an_hour_has_so_many_submissions_and_says_when_the_next_is_free(clock: ManualClock) -> None:
    uses, quota = QuotaUses(clock), Quota(submissions_per_hour=2)
    uses.take_submission("ann", quota)
    clock.advance(600)
    uses.take_submission("ann", quota)
    with pytest.raises(QuotaError) as refused:
        uses.take_submission("ann", quota)
    assert refused.value.retry_after_s == HOUR_S - 600
    uses.take_submission("bob", quota)
    clock.advance(HOUR_S - 600)
    uses.take_submission("ann", quota)


def test_connections_and_streams_are_given_back(clock: ManualClock) -> None:
    uses, quota = QuotaUses(clock), Quota(connections=1, streams=1)
    for hold in (uses.connection, uses.stream):
        with hold("ann", quota):
            with pytest.raises(QuotaError), hold("ann", quota):
                pass
            with hold("bob", quota):
                pass
        with hold("ann", quota):
            pass
    used = uses.use_of("ann")
    assert (used.connections, used.streams) == (0, 0)


def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: added(tmp_path, f"ann{number}"), range(24)))
    assert len(TokenFile(tmp_path).read()) == 24
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]
