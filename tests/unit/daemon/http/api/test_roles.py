"""Each role over every route: what is refused is refused alike, whatever exists, and changes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from synthetic.daemon.daemon_parts import BASE, DaemonParts, open_daemon

from rftd.daemon.http.api.doorkeeper import OPEN_PATHS
from rftd.daemon.http.api.routes import declared_routes
from rftd.daemon.http.views.route import CommandRoute
from rftd.daemon.trust.asker import AccessRole
from rftd.daemon.trust.quota import Quota
from rftd.daemon.trust.token_file import TokenFile

pytestmark = pytest.mark.anyio

OWNER: Final = "the-owner"
NEEDED: Final = {
    (each.path, "post" if isinstance(each, CommandRoute) else "get"): each.role for each in declared_routes()
}
"""The role of each declared route; those of the probes and the stream are reads."""


@pytest.fixture
async def guarded(tmp_path: Path, anyio_backend: str) -> AsyncIterator[DaemonParts]:
    async with open_daemon(tmp_path, token=OWNER) as opened:
        yield opened


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def added(folder: Path, role: str, name: str = "", **quota: int) -> str:
    return TokenFile(folder).add(name or role, role, created_ns=0, expires_ns=None, quota=Quota(**quota))


async def operations(client: httpx.AsyncClient) -> list[tuple[str, str, dict[str, Any]]]:
    """Every path and method of the document, and what it says of it."""
    document = (await client.get("/openapi.json", headers=bearer(OWNER))).json()
    return [(path, method, said) for path, its in document["paths"].items() for method, said in its.items()]


async def heads(parts: DaemonParts) -> dict[Any, Any]:
    return dict(await parts.log.heads())


@pytest.mark.parametrize("name", ["small", "nobody"])
async def test_without_a_token_every_route_answers_the_same(guarded: DaemonParts, name: str) -> None:
    before = await heads(guarded)
    async with guarded.client() as client:
        answers = set[bytes]()
        for path, method, said in await operations(client):
            answer = await client.request(method, path.replace("{name}", name))
            if path in OPEN_PATHS:
                assert said["security"] == []
                assert answer.status_code == 200
                assert "small" not in answer.text
                continue
            assert answer.status_code == 401, (method, path)
            assert {"401", "403", "429"} <= said["responses"].keys(), (method, path)
            assert said["security"]
            answers.add(answer.content)
        for path in ("/openapi.json", "/nowhere", "/v1/experiments/small/nowhere", "/docs", "/static", "/login/x"):
            answers.add((await client.get(path)).content)
        assert len(answers) == 1, "an answer must not tell what exists"
    assert await heads(guarded) == before


@pytest.mark.parametrize("role", list(AccessRole), ids=lambda role: role.label)
async def test_each_role_may_do_what_its_routes_say_and_no_more(
    guarded: DaemonParts, tmp_path: Path, role: AccessRole
) -> None:
    token = OWNER if role is AccessRole.OWNER else added(tmp_path, role.label)
    before = await heads(guarded)
    refused = 0
    async with guarded.client(**bearer(token)) as client:
        for path, method, said in await operations(client):
            needed = NEEDED.get((path, method), AccessRole.READ)
            if path not in OPEN_PATHS:
                assert f"role `{needed.label}`" in said["description"]
            if path.endswith("/stream"):
                continue
            # A body that nothing accepts: whoever may ask is told so, and nothing is done.
            body = {"content": b"{", "headers": {"Content-Type": "application/json"}} if method == "post" else {}
            answers = [
                await client.request(method, path.replace("{name}", name), **body) for name in ("small", "nobody")
            ]
            for answer in answers:
                assert (answer.status_code == 403) == (needed > role), (method, path, answer.text)
                assert answer.status_code != 401
            if needed > role:
                refused += 1
                assert answers[0].content == answers[1].content
                assert answers[0].json()["code"] == "RFTD-API-008"
    assert refused == sum(needed > role for needed in NEEDED.values())
    assert await heads(guarded) == before


async def test_what_is_wrong_with_a_token_is_counted_and_not_told(guarded: DaemonParts, tmp_path: Path) -> None:
    expired = TokenFile(tmp_path).add("old", "admin", created_ns=0, expires_ns=1, quota=Quota())
    removed = added(tmp_path, "admin")
    TokenFile(tmp_path).remove("admin")
    async with guarded.client() as client:
        answers = set[bytes]()
        for headers in ({}, bearer(expired), bearer(removed), bearer("x" * 600), {"Authorization": f"Basic {OWNER}"}):
            answer = await client.get("/v1/experiments/small", headers=headers)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            answers.add(answer.content)
        assert len(answers) == 1
        text = (await client.get("/metrics", headers=bearer(OWNER))).text
    for reason, count in (("missing", 1), ("expired", 1), ("unknown", 1), ("malformed", 2)):
        assert f'rftd_http_refused_total{{reason="{reason}"}} {count}.0' in text


async def test_a_browser_signs_in_by_a_link_and_only_its_own_page_may_command(
    guarded: DaemonParts, tmp_path: Path
) -> None:
    token = added(tmp_path, "submit")
    async with guarded.client() as client:
        link = (await client.post("/v1/login-links", headers=bearer(token))).json()
        assert link["role"] == "submit"
        page = await client.get(link["path"])
        assert page.status_code == 200
        cookie = page.headers["set-cookie"]
        assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
        assert (await client.get(link["path"])).status_code == 401, "it was used"
        assert (await client.get("/v1/experiments")).status_code == 200
        pause = "/v1/experiments/small/pause"
        for headers in ({}, {"Sec-Fetch-Site": "same-site"}, {"Sec-Fetch-Site": "cross-site"}):
            assert (await client.post(pause, headers=headers)).json()["code"] == "RFTD-API-002", headers
        foreign = {"Origin": "http://127.0.0.1:7071", "Sec-Fetch-Site": "same-site"}
        assert (await client.post(pause, headers=foreign)).json()["code"] == "RFTD-API-002"
        for headers in ({"Origin": BASE}, {"Sec-Fetch-Site": "same-origin"}):
            assert (await client.post(pause, headers=headers)).json()["code"] != "RFTD-API-002", headers
        TokenFile(tmp_path).remove("submit")
        assert (await client.get("/v1/experiments")).status_code == 401


async def test_answers_bound_what_a_browser_does_with_them(guarded: DaemonParts) -> None:
    async with guarded.client() as client:
        for path, headers in (("/login", {}), ("/v1/experiments", {}), ("/v1/experiments", bearer(OWNER))):
            answer = await client.get(path, headers=headers)
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
            # A read has an ETag, which a browser may only use after asking: "no-cache" keeps, and always asks again.
            stored = "private, no-cache" if answer.headers.get("etag") else "no-store"
            assert answer.headers["cache-control"] == stored
        assert "etag" in answer.headers


async def test_limits_of_a_token_are_429_and_seen(guarded: DaemonParts, tmp_path: Path) -> None:
    token = added(tmp_path, "submit", submissions_per_hour=1)
    other = added(tmp_path, "read")
    async with guarded.client(**bearer(token)) as client:
        first = await client.post("/v1/experiments", json={"config": {}})
        assert first.status_code == 422
        second = await client.post("/v1/experiments", json={"config": {}})
        assert second.status_code == 429
        assert second.json()["code"] == "RFTD-API-009"
        assert 0 < int(second.headers["retry-after"]) <= 3600
        seen = (await client.get("/v1/tokens")).json()
        assert (seen["asker"], seen["role"]) == ("submit", "submit")
        assert [(each["name"], each["submitted"]) for each in seen["items"]] == [("submit", 1)], "others' are not shown"
        everything = (await client.get("/v1/tokens", headers=bearer(OWNER))).json()
        assert {each["name"] for each in everything["items"]} == {"submit", "read"}
        for secret in (token, other, OWNER):
            assert secret not in str(everything)


@pytest.mark.parametrize(
    ("quota", "path", "what"),
    [
        ({"connections": 0}, "/v1/experiments", "requests with the token"),
        ({"streams": 0}, "/v1/experiments/small/stream", "event streams with the token"),
    ],
)
async def test_connections_and_streams_of_a_token_are_limited(
    guarded: DaemonParts, tmp_path: Path, quota: dict[str, int], path: str, what: str
) -> None:
    token, other = added(tmp_path, "read", "small", **quota), added(tmp_path, "read", "large")
    async with guarded.client(**bearer(token)) as client:
        answer = await client.get(path)
        assert (answer.status_code, answer.json()["code"]) == (429, "RFTD-API-009")
        assert what in answer.json()["detail"]
        others = await client.get("/v1/experiments", headers=bearer(other))
        assert others.status_code == 200
