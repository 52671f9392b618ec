"""Reads over HTTP: from tables and a log that hold one real run."""

from __future__ import annotations

import httpx
import pytest
from synthetic.daemon.daemon_parts import DaemonParts
from synthetic.log.beset_run import BesetRun
from synthetic.log.recorder import Recorder

from rftd.daemon.http.api import services
from rftd.daemon.http.views.experiments import ExperimentPage
from rftd.daemon.http.views.wire import from_wire, to_wire
from rftd.daemon.observe.metrics_follower import show
from rftd.streams.events.weights import WeightsOverdue
from rftd.streams.log.fencing import FenceView

pytestmark = pytest.mark.anyio


async def get(client: httpx.AsyncClient, path: str, **params: object) -> dict:
    answer = await client.get(path, params={key: str(value) for key, value in params.items()})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_lists_the_run_with_iso_times(client: httpx.AsyncClient) -> None:
    listed = await get(client, "/v1/experiments")
    [row] = listed["items"]
    assert (row["name"], row["state"], row["step"]) == ("small", "completed", 5)
    assert row["submitted_at"].endswith("Z")
    assert "submitted_ns" not in row
    assert listed["next"] is None
    assert (await get(client, "/v1/experiments", state="failed"))["items"] == []


async def test_one_page_by_name_id_and_prefix(client: httpx.AsyncClient, parts) -> None:
    page = await get(client, "/v1/experiments/small")
    assert page == await get(client, f"/v1/experiments/{parts.run.id}")
    assert page == await get(client, f"/v1/experiments/{parts.run.id.hex[:12]}")
    books = page["experiment"]["books"]
    assert books["balance"] == 0
    assert books["produced"] == books["waiting"] + books["planned"] + sum(books["retired"].values())
    assert [point["step"] for point in page["reward_curve"]] == [3, 4, 5]
    assert {row["state"] for row in page["workers"]} == {"live", "lost", "stopped"}


async def test_a_page_has_the_windows_whose_weights_were_overdue(client: httpx.AsyncClient, parts) -> None:
    late = WeightsOverdue(stage=1, window=2, wanted=4, version=-1, waited_s=60.0, reason="late")
    parts.run.recorder.write(late, parts.run.id, role="dispatcher")
    [position] = await parts.log.append(parts.run.recorder.drafts[-1:])
    told = await get(client, "/v1/experiments/small", after=str(position))
    page = from_wire(told, ExperimentPage)
    assert [(row.window, row.version, row.reason) for row in page.overdue] == [(2, -1, "late")]
    assert page.overdue_windows == 1
    assert to_wire(page) == told


async def test_why_names_records_of_strangers(client: httpx.AsyncClient, parts) -> None:
    before = await get(client, "/v1/experiments/small/why")
    assert "foreign_records" not in {wait["state"] for wait in before["waits"]}
    show(BesetRun(Recorder()).write().recorder.records, parts.feed, FenceView())
    after = await get(client, "/v1/experiments/small/why")
    [wait] = [wait for wait in after["waits"] if wait["state"] == "foreign_records"]
    assert "strangers without effect" in wait["waiting_for"]
    assert "rftd verify" in wait["unblock"]


async def test_steps_are_paged(client: httpx.AsyncClient) -> None:
    first = await get(client, "/v1/experiments/small/steps", limit=2)
    rest = await get(client, "/v1/experiments/small/steps", first=first["next"])
    assert [row["step"] for row in first["items"] + rest["items"]] == [1, 2, 3, 4, 5]
    assert first["items"][0]["metrics"]["bad"] is None  # NaN is no JSON


async def test_a_batch_with_its_items(client: httpx.AsyncClient) -> None:
    page = await get(client, "/v1/experiments/small/batches/3")
    assert page["batch"]["state"] == "trained"
    assert len(page["items"]) == 8
    missing = await client.get("/v1/experiments/small/batches/99")
    assert missing.status_code == 404
    assert missing.json()["code"] == "RFTD-NOF-001"


async def test_evals(client: httpx.AsyncClient) -> None:
    assert [row["score"] for row in (await get(client, "/v1/experiments/small/evals"))["items"]] == [0.75] * 3


async def test_lengths_say_whether_drops_were_biased(client: httpx.AsyncClient) -> None:
    lengths = await get(client, "/v1/experiments/small/lengths")
    assert lengths["generated"]["count"] == lengths["trained"]["count"] + lengths["dropped"]["count"]
    assert lengths["dropped_by_reason"] == {"late": 1, "stale": 1}
    assert 0 <= lengths["p"] <= 1
    assert (await get(client, "/v1/experiments/small/lengths", stage=7))["generated"]["count"] == 0
    assert (await client.get("/v1/experiments/nobody/lengths")).status_code == 404


async def test_experiences_are_filtered_and_shown_with_tokens(client: httpx.AsyncClient) -> None:
    good = await get(client, "/v1/experiments/small/experiences", min_reward=0.5, order="oldest", limit=500)
    assert good["items"]
    assert all(row["reward"] >= 0.5 for row in good["items"])
    id = good["items"][0]["id"]
    plain = await get(client, f"/v1/experiments/small/experiences/{id}")
    assert plain["tokens"] is None
    assert plain["spans"]
    full = await get(client, f"/v1/experiments/small/experiences/{id}", tokens="true")
    row = full["experience"]
    assert len(full["tokens"]) == row["prompt_tokens"] + row["response_tokens"]
    assert len(full["logprobs"]) == len(full["loss_mask"]) == row["response_tokens"]


async def test_after_waits_for_the_tables(client: httpx.AsyncClient, parts) -> None:
    config = parts.run.recorder  # the run is applied already: its last position is there at once
    last = config.records[-1]
    page = await get(client, "/v1/experiments/small", after=f"{last.partition}@{last.offset}")
    assert page["experiment"]["summary"]["state"] == "completed"
    for wrong in ("nonsense", "rftd.experiments/99@1", "rftd.heartbeats/0@1"):
        refused = await client.get("/v1/experiments", params={"after": wrong})
        assert refused.status_code == 422
        assert refused.json()["field"] == "after"


async def test_what_a_command_made_is_waited_for_and_a_page_before_it_reads_itself_again(
    client: httpx.AsyncClient, parts: DaemonParts, swept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "READ_TIMEOUT_S", 0.05)
    parts.following.cancel()
    cancelled = await client.post(f"/v1/sweeps/{swept}/cancel", json={"reason": "enough"})
    assert cancelled.status_code == 202, cancelled.text
    position = cancelled.json()["position"]
    early = await client.get("/runs/small", params={"after": position})
    assert (early.status_code, '<meta http-equiv="refresh" content="2">' in early.text) == (504, True)
    # The log knows that the sweep is over; its table of before would be without the last figures.
    assert (await client.get(f"/v1/sweeps/{swept}")).status_code == 504
    await parts.projector.catch_up()
    assert (await client.get("/runs/small", params={"after": position})).status_code == 200
    assert (await get(client, f"/v1/sweeps/{swept}"))["sweep"]["over"]
    assert (await client.get("/runs/small", params={"after": "nonsense"})).status_code == 422


async def test_events_page_through_the_whole_log_once(client: httpx.AsyncClient, parts) -> None:
    seen: list[dict] = []
    cursor: dict[str, object] = {}
    while True:
        page = await get(client, "/v1/experiments/small/events", limit=37, **cursor)
        seen += page["items"]
        cursor = {"cursor": page["next"]}
        if not page["more"]:
            break
    assert len(seen) == len({event["id"] for event in seen}) == len(parts.run.recorder.records)
    by_partition: dict[str, list[int]] = {}
    for event in seen:
        partition, _, offset = event["position"].partition("@")
        by_partition.setdefault(partition, []).append(int(offset))
    assert all(offsets == sorted(offsets) for offsets in by_partition.values())
    assert (await get(client, "/v1/experiments/small/events", **cursor))["items"] == []


async def test_events_by_type_show_arrays_as_their_shape(client: httpx.AsyncClient) -> None:
    page = await get(client, "/v1/experiments/small/events", type="experience.produced", limit=3)
    payload = page["items"][0]["payload"]
    assert payload["tokens"]["dtype"] == "u4"
    assert payload["tokens"]["shape"][0] > 3
    life = await get(client, "/v1/experiments/small/events", type="experiment")
    assert [event["type"] for event in life["items"]] == [
        "experiment.submitted",
        "experiment.accepted",
        "experiment.started",
        "experiment.completed",
    ]
    refused = await client.get("/v1/experiments/small/events", params={"type": "experimnt"})
    assert refused.status_code == 422
    assert refused.json()["field"] == "type"


async def test_the_stream_of_an_ended_experiment_is_a_page_and_the_end(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/experiments/small/stream")
    assert answer.headers["content-type"].startswith("text/event-stream")
    page, end, rest = answer.text.split("\n\n")
    assert page.startswith("event: page\nid: ")
    assert "\ndata: {" in page
    assert end == 'event: end\ndata: "completed"'
    assert rest == ""
