"""Commands over HTTP: what is taken in, and every way of being refused."""

from __future__ import annotations

from uuid import UUID

import httpx
import pytest
from synthetic.daemon.experiment_files import TEXT, config

from rftd.ops import limits

pytestmark = pytest.mark.anyio

JSON = {"Content-Type": "application/json"}
YAML = {"Content-Type": "application/yaml; charset=utf-8"}


def problem(answer: httpx.Response, status: int, code: str, field: str | None = None) -> dict:
    """The problem that an answer must be."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert (body["status"], body["code"], body["type"]) == (status, code, f"urn:rftd:error:{code}")
    assert body["title"]
    assert body["detail"]
    if field is not None:
        assert body["field"] == field
    return body


async def submit(client: httpx.AsyncClient, key: str | None = None, **changes: object) -> httpx.Response:
    headers = {"Idempotency-Key": key} if key else {}
    return await client.post("/v1/experiments", json={"config": config(**changes)}, headers=headers)


async def test_a_submission_is_in_the_log_and_seen_after_its_position(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/experiments", json={"config": config(), "labels": {"team": "a"}})
    assert answer.status_code == 202
    receipt = answer.json()
    assert answer.headers["location"] == f"/v1/experiments/{receipt['id']}"
    page = (await client.get(f"/v1/experiments/{receipt['id']}", params={"after": receipt["position"]})).json()
    assert page["experiment"]["summary"]["labels"] == {"team": "a"}
    assert page["experiment"]["summary"]["name"] == receipt["name"] == "mine"


@pytest.mark.parametrize("key", ["018bcfe5-6800-7000-98a7-dbefd82c07cd", "my own key"])
async def test_the_same_key_is_the_same_submission(client: httpx.AsyncClient, key: str) -> None:
    first, again = await submit(client, key), await submit(client, key)
    assert first.json() == again.json()
    other = await submit(client, key + "x" if " " in key else None)
    assert other.json()["id"] != first.json()["id"]


async def test_a_priority_is_changed_by_an_event(client: httpx.AsyncClient) -> None:
    receipt = (await submit(client, priority=4)).json()
    path = f"/v1/experiments/{receipt['id']}"
    assert (await client.get(f"{path}/summary", params={"after": receipt["position"]})).json()["priority"] == 4
    problem(await client.post(f"{path}/prioritize", json={}), 422, "RFTD-USE-001")
    problem(await client.post(f"{path}/prioritize", json={"priority": "high"}), 422, "RFTD-USE-001", "priority")
    changed = await client.post(f"{path}/prioritize", json={"priority": 9}, headers={"Idempotency-Key": "k"})
    assert changed.status_code == 202
    again = await client.post(f"{path}/prioritize", json={"priority": 9}, headers={"Idempotency-Key": "k"})
    assert again.json() == changed.json()
    page = (await client.get(path, params={"after": changed.json()["position"]})).json()
    summary = page["experiment"]["summary"]
    assert (summary["priority"], summary["queue_position"], page["experiment"]["config"]["priority"]) == (9, 1, 4)


async def test_a_tag_needs_an_experience_and_a_number(client: httpx.AsyncClient) -> None:
    path = f"/v1/experiments/{(await submit(client)).json()['id']}/experiences/{UUID(int=7)}/prioritize"
    problem(await client.post(path, json={"priority": 2.5}), 404, "RFTD-NOF-001")
    problem(await client.post(path, json={"priority": "high"}), 422, "RFTD-USE-001", "priority")
    given_up = path.replace("prioritize", "give-up")
    problem(await client.post(given_up), 404, "RFTD-NOF-001")  # the reason may be missing, and so may the body


async def test_transitions_and_their_conflicts(client: httpx.AsyncClient) -> None:
    receipt = (await submit(client)).json()
    path = f"/v1/experiments/{receipt['id']}"
    await client.get(path, params={"after": receipt["position"]})
    problem(await client.post(f"{path}/resume"), 409, "RFTD-CON-001")
    cancelled = await client.post(f"{path}/cancel", json={"reason": "enough"}, headers={"Idempotency-Key": "k"})
    assert cancelled.status_code == 202
    again = await client.post(f"{path}/cancel", headers={"Idempotency-Key": "k"})
    assert again.json()["position"] == cancelled.json()["position"]
    page = (await client.get(path, params={"after": cancelled.json()["position"]})).json()
    assert (page["experiment"]["summary"]["state"], page["experiment"]["summary"]["reason"]) == ("cancelled", "enough")
    problem(await client.post(f"{path}/pause"), 409, "RFTD-CON-001")
    problem(await client.post("/v1/experiments/nope/pause"), 404, "RFTD-NOF-001")


async def test_every_error_of_a_config_at_once(client: httpx.AsyncClient) -> None:
    wrong = config(mode="sideways", nonsense=1)
    body = (await client.post("/v1/experiments", json={"config": wrong})).json()
    assert body["status"] == 422
    assert len(body["errors"]) == 2
    assert {part["field"] for part in body["errors"]} == {"mode", "nonsense"}
    assert all(part["code"].startswith("RFTD-CFG-") for part in body["errors"])


async def test_an_interpolation_of_a_stranger_stays_text_and_a_secret_is_refused(client: httpx.AsyncClient) -> None:
    receipt = await submit(client, labels={"a": "${oc.env:HOME}"})
    assert receipt.status_code == 202
    assert "labels.a holds a `${`, which stays text: only `rftd submit` resolves it" in receipt.json()["warnings"]
    path = f"/v1/experiments/{receipt.json()['id']}"
    page = (await client.get(path, params={"after": receipt.json()["position"]})).json()
    assert page["experiment"]["config"]["labels"] == {"a": "${oc.env:HOME}"}
    stolen = await submit(client, log={"api_key": "${oc.env:HOME}"})
    assert stolen.status_code == 422
    assert "RFTD-CFG-007" in {error["code"] for error in stolen.json()["errors"]}


async def test_bodies_that_are_none(client: httpx.AsyncClient) -> None:
    for body, field in (
        (b"", "body"),
        (b"{", "body"),
        (b"[]", "body"),
        (b'{"config": 3}', "config"),
        (b'{"config": {}, "more": 1}', "body"),
        (b'{"config": {}, "labels": {"a": 1}}', None),
        (b'{"config": "\xff"}', "body"),
    ):
        problem(await client.post("/v1/experiments", content=body, headers=JSON), 422, "RFTD-USE-001", field)


async def test_an_experiment_file_is_taken_as_it_is(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/experiments", content=TEXT.encode(), headers=YAML | {"Idempotency-Key": "file"})
    assert answer.status_code == 202, answer.text
    again = await client.post("/v1/experiments", json={"config": config()}, headers={"Idempotency-Key": "file"})
    assert again.json() == answer.json(), "it says the same in JSON"


@pytest.mark.parametrize(
    ("old", "new", "code", "where"),
    [
        ("repeat_times", "repeat_tims", "RFTD-CFG-004", "body:6:3"),
        ("batch_size: 2", "batch_size: two", "RFTD-CFG-005", "body:11:15"),
        ("batch_size: 2", "batch_size: 1\n  batch_size: 2", "RFTD-CFG-002", "body:12:3"),
        ("batch_size: 2", "batch_size: ${oc.env:N}", "RFTD-CFG-005", "body:11:15"),
        ("/c", "c", "RFTD-CFG-005", "body:3:22"),
        ("name: mine", "name: !!python/object:os.system x", "RFTD-CFG-002", "body:2:7"),
        ("name: mine", "name: 'mine", "RFTD-CFG-002", None),
    ],
)
async def test_an_error_of_a_file_has_its_line(
    client: httpx.AsyncClient, old: str, new: str, code: str, where: str | None
) -> None:
    answer = await client.post("/v1/experiments", content=TEXT.replace(old, new).encode(), headers=YAML)
    body = problem(answer, 422, "RFTD-CFG-001")
    [found] = body["errors"] or [body]
    assert found["code"] == code
    assert found["where"].startswith("body:")
    assert where is None or found["where"] == where
    assert where is None or "^" in found["excerpt"]


async def test_files_that_are_none(client: httpx.AsyncClient) -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in ("ab", "bc", "cd", "de")
    )
    for text, status, code in (
        (b"", 422, "RFTD-CFG-001"),
        (b"- a\n", 422, "RFTD-CFG-001"),
        (b"name: \xff", 422, "RFTD-USE-001"),
        (b"a: " + b"[" * 10_000 + b"]" * 10_000, 413, "RFTD-API-003"),
        (bomb.encode(), 413, "RFTD-API-003"),
        (b"a: " + b"x" * limits.CONFIG_SIZE_BYTES, 413, "RFTD-API-003"),
        (b"a: " + b"x" * limits.REQUEST_SIZE_BYTES, 413, "RFTD-API-003"),
    ):
        problem(await client.post("/v1/experiments", content=text, headers=YAML), status, code)


async def test_deep_json_is_refused(client: httpx.AsyncClient) -> None:
    for depth in (40, 100_000):
        body = b'{"config": {"a": ' + b"[" * depth + b"]" * depth + b"}}"
        problem(await client.post("/v1/experiments", content=body, headers=JSON), 413, "RFTD-API-003")


async def test_large_bodies_are_refused_declared_or_not(client: httpx.AsyncClient) -> None:
    body = b'{"config": {"a": "' + b"x" * limits.REQUEST_SIZE_BYTES + b'"}}'
    problem(await client.post("/v1/experiments", content=body, headers=JSON), 413, "RFTD-API-003")

    async def pieces():
        for _ in range(limits.REQUEST_SIZE_BYTES // 65_536 + 2):
            yield b"x" * 65_536

    problem(await client.post("/v1/experiments", content=pieces(), headers=JSON), 413, "RFTD-API-003")


async def test_media_type_method_path_and_parameters(client: httpx.AsyncClient) -> None:
    plain = await client.post("/v1/experiments", content=b"{}", headers={"Content-Type": "text/plain"})
    problem(plain, 415, "RFTD-API-006", "Content-Type")
    pausing = await client.post("/v1/experiments/small/pause", content=b"reason: a", headers=YAML)
    problem(pausing, 415, "RFTD-API-006", "Content-Type")
    asked = await client.post("/v1/experiments", params={"dry": "true"}, json={"config": config()})
    problem(asked, 422, "RFTD-USE-001", "dry")
    problem(await client.delete("/v1/experiments"), 405, "RFTD-API-004")
    problem(await client.get("/v1/nothing"), 404, "RFTD-NOF-001")
    problem(await client.get("/v1/experiments/"), 404, "RFTD-NOF-001")
    problem(await client.get("/v1/experiments", params={"limit": "many"}), 422, "RFTD-USE-001", "limit")
    problem(await client.get("/v1/experiments", params={"limit": 0}), 422, "RFTD-USE-001", "limit")
    problem(await client.get("/v1/experiments", params={"state": "happy"}), 422, "RFTD-USE-001", "state.0")
    problem(await client.get("/v1/experiments/small/experiences/none"), 422, "RFTD-USE-001", "experience")
    problem(await client.get("/v1/experiments/small/experiences", params={"order": "x"}), 422, "RFTD-USE-001", "order")
    problem(await client.get("/v1/experiments/small/events", params={"cursor": "%%"}), 400, "RFTD-API-010", "cursor")
    problem(await client.get("/v1/experiments/small/logs", params={"after": "{"}), 422, "RFTD-USE-001", "after")
    empty = await client.post("/v1/experiments", json={"config": config()}, headers={"Idempotency-Key": " "})
    problem(empty, 422, "RFTD-USE-001", "Idempotency-Key")


async def test_a_fork_over_http(client: httpx.AsyncClient) -> None:
    parent = (await submit(client)).json()
    path = f"/v1/experiments/{parent['id']}/fork"
    await client.get(f"/v1/experiments/{parent['id']}", params={"after": parent["position"]})
    body = {"at_step": 0, "set": ["buffer.total_steps=7"], "name": "other"}
    first, again = [await client.post(path, json=body, headers={"Idempotency-Key": "fork"}) for _ in range(2)]
    assert first.status_code == 202
    assert first.json() == again.json()
    receipt = first.json()
    assert (receipt["parent"], receipt["at_step"], receipt["name"]) == (parent["id"], 0, "other")
    page = (await client.get(first.headers["location"], params={"after": receipt["position"]})).json()
    assert page["experiment"]["summary"]["parent"] == parent["id"]
    assert page["experiment"]["parent_name"] == "mine"
    problem(await client.post(path, json={"at_step": 2}), 409, "RFTD-CON-001", "at_step")
    problem(await client.post(path, json={}), 422, "RFTD-USE-001")
    for wrong, field in (("no.such=1", "no"), ("algorithm.repeat_times=no", "algorithm.repeat_times"), ("a", None)):
        answer = await client.post(path, json={"at_step": 0, "set": [wrong]})
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, field), answer.text
    problem(await client.post("/v1/experiments/nope/fork", json={"at_step": 0}), 404, "RFTD-NOF-001")
