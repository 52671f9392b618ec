"""Who may come in: one-time links for browsers, and the tokens with what is taken of their limits."""

from __future__ import annotations

import msgspec

from rftd.daemon.http.views.route import Daemon, command, read
from rftd.daemon.trust.asker import AccessRole

_TAG = "access"


class NewLink(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/login-links, which has no field."""


class LoginLink(msgspec.Struct, frozen=True, kw_only=True):
    """A link that signs one browser in, once, within five minutes."""

    path: str
    """The path at this daemon's address. A secret: whoever opens it first has the rights of the token."""
    role: str
    """The role that the browser will have."""


class TokenView(msgspec.Struct, frozen=True, kw_only=True):
    """One named token: its limits, and what is taken of them. None: the daemon's general limits alone."""

    name: str
    role: str
    expires_ns: int | None
    submissions_per_hour: int | None
    submitted: int
    """Submissions within the last hour."""
    queued: int | None
    waiting: int
    """Experiments that wait in the queue."""
    connections: int | None
    connected: int
    streams: int | None
    streaming: int


class TokenList(msgspec.Struct, frozen=True, kw_only=True):
    """The named tokens that are in use: all for an admin, else the asker's own."""

    asker: str
    """The name of the token that asked, or `owner`."""
    role: str
    items: list[TokenView]


class AllowList(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the daemon's configuration."""

    line: str
    """The name of the line: `roots`, `allow_env`, `secrets`, `allow_urls`, `allow_code` or `allow_args`."""
    allows: list[str]
    """The folders, patterns, variables with their hosts, or addresses that it allows."""
    faulty: list[str]
    """The folders of it that allow nothing, because they are links, lie behind one, or do not exist."""


class AllowLists(msgspec.Struct, frozen=True, kw_only=True):
    """The names that submissions of everybody but the owner may hold."""

    items: list[AllowList]


@command("/v1/login-links", NewLink, LoginLink, tag=_TAG, optional=True, dry=True, role=AccessRole.READ)
async def new_link(daemon: Daemon, body: NewLink) -> LoginLink:
    """Makes a one-time link for a browser, with the rights of the token that asks."""
    return LoginLink(path=daemon.login_path(), role=daemon.asker.role.label)


@read("/v1/tokens", TokenList, tag=_TAG)
async def tokens(daemon: Daemon) -> TokenList:
    """The named tokens, their limits and what is taken of them; never a token itself."""
    waiting = await daemon.operations.queued_by()
    items = [
        TokenView(
            name=entry.name,
            role=entry.role,
            expires_ns=entry.expires_ns,
            submissions_per_hour=quota.submissions_per_hour,
            submitted=use.submissions_per_hour,
            queued=quota.queued,
            waiting=waiting.get(entry.name, 0),
            connections=quota.connections,
            connected=use.connections,
            streams=quota.streams,
            streaming=use.streams,
        )
        for entry, quota, use in daemon.holders()
    ]
    return TokenList(asker=daemon.asker.name, role=daemon.asker.role.label, items=items)


@read("/v1/allowances", AllowLists, tag=_TAG, role=AccessRole.ADMIN)
async def allowances(daemon: Daemon) -> AllowLists:
    """The names that others than the owner may use in submissions, by the lines of the daemon's configuration."""
    import asyncio  # not above: the command line imports this module, and loads no event loop to check a file

    lists = daemon.operations.allowances
    faults = await asyncio.to_thread(lambda: list(lists.faults()))
    return AllowLists(
        items=[
            AllowList(line=line, allows=list(names), faulty=[folder for at, folder in faults if at == line])
            for line, names in lists.lists()
        ]
    )
