"""Certificates that must not be believed, and the rights of the page against those of the code."""

from __future__ import annotations

import asyncio
import shlex
import ssl
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from synthetic.docs.pages import ROOT, blocks_of
from synthetic.servers.certificates import Authority

from rftd.ops.errors import ConfigError
from rftd.streams.kafka.connect import check_cluster
from rftd.streams.kafka.rights import WRITES, in_words, missing_rights
from rftd.streams.kafka.settings import parse_kafka
from rftd.streams.log.topics import TOPICS

PAGE = ROOT / "docs" / "production.md"
USERS = {"daemon": "rftd", "explorer": "rftd-explorer", "trainer": "rftd-trainer"}


def acls() -> Iterator[tuple[set[str], set[str], set[str], bool]]:
    """Users, operations and topics of each kafka-acls.sh line of the page, and whether topics are prefixes."""
    for block in blocks_of(PAGE, "console"):
        for line in block.text.splitlines():
            if line.startswith("kafka-acls.sh "):
                words = shlex.split(line)
                given: dict[str, set[str]] = {}
                for name, value in pairwise(words):
                    given.setdefault(name, set()).add(value)
                users = {each.removeprefix("User:") for each in given["--allow-principal"]}
                yield users, given["--operation"], given["--topic"], "prefixed" in words


def granted(user: str, prefix: str) -> dict[str, frozenset[str]]:
    """The operations that the page's commands allow a user on each topic."""
    found: dict[str, set[str]] = {prefix + name: set() for name in TOPICS}
    for users, operations, topics, prefixed in acls():
        if user in users:
            for name in found:
                if any(name == prefix + topic or (prefixed and name.startswith(prefix + topic)) for topic in topics):
                    found[name] |= operations
    return {name: frozenset(operations) for name, operations in found.items()}


@pytest.mark.parametrize("role", USERS)
def test_the_commands_of_the_page_give_each_role_what_it_needs_and_write_no_more(role: str) -> None:
    allowed = granted(USERS[role], "")
    assert not list(missing_rights(role, allowed, ""))
    assert {name for name, rights in allowed.items() if "Write" in rights} == WRITES[role]


def test_a_producer_may_write_requests_and_nothing_else() -> None:
    allowed = granted("producer", "")
    assert {name: rights for name, rights in allowed.items() if rights} == {"rftd.requests": {"Write"}}


def test_missing_rights_are_told_together() -> None:
    allowed = {name: rights - {"Write"} for name, rights in granted("rftd", "").items()}
    some = {name: allowed[name] for name in ("rftd.tasks", "rftd.weights")}
    assert in_words(missing_rights("daemon", some, "")) == "Write on rftd.tasks, rftd.weights"
    assert in_words(missing_rights("explorer", some, "")) == "Write on rftd.weights"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("hosts", "expired", "trusted", "text"),
    [
        ("IP:127.0.0.1", True, True, "expired"),
        ("DNS:another.example", False, True, "mismatch"),
        ("IP:127.0.0.1", False, False, "certificate verify failed"),
    ],
    ids=["expired", "of_another_host", "of_an_unknown_authority"],
)
async def test_a_certificate_that_must_not_be_believed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hosts: str, expired: bool, trusted: bool, text: str
) -> None:
    monkeypatch.setenv("RFTD_KAFKA_PASSWORD", "a-secret-that-nobody-gets")
    authority = Authority(tmp_path / "own")
    certificate, key = authority.certificate("broker", hosts=hosts, expired=expired)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    received = bytearray()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.extend(await reader.read())
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    ca_file = authority.ca_file if trusted else Authority(tmp_path / "other").ca_file
    settings = parse_kafka(f"kafka://rftd@127.0.0.1:{port}/?security=SASL_SSL&ca_file={ca_file}")
    with pytest.raises(ConfigError, match=text) as refused:
        await check_cluster(settings)
    assert "no TLS connection" in refused.value.what
    assert "a-secret" not in str(refused.value)
    assert not received
    server.close()
    await server.wait_closed()
