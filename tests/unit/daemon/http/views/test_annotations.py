"""Notes, stars and labels on runs and rollouts: events, once per key, in any state, shown in the reads."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from synthetic.daemon.daemon_parts import DaemonParts
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.ops.clock import ManualClock
from rftd.storage.database.engine import open_database
from rftd.storage.projector.projector import Projector
from rftd.storage.queries.annotations import list_marks, list_notes
from rftd.storage.queries.experiments import ExperimentFilter, list_experiments
from rftd.streams.events.experiment import ExperimentAnnotated
from rftd.streams.memory import MemoryLog

pytestmark = pytest.mark.anyio
PATH = "/v1/experiments/small/annotate"


async def _annotated(client: httpx.AsyncClient, key: str, **body: Any) -> dict[str, Any]:
    answer = await client.post(PATH, json=body, headers={"Idempotency-Key": key})
    assert answer.status_code == 202, answer.text
    position = answer.json()["position"]
    found: dict[str, Any] = (
        await client.get(PATH.replace("annotate", "annotations"), params={"after": position})
    ).json()
    return found


async def test_an_ended_run_takes_notes_a_star_and_labels(client: httpx.AsyncClient, parts: DaemonParts) -> None:
    hostile = "<script>alert(1)</script> \u202e\u0007"
    first = await _annotated(client, "7c4e9a80-0000-4000-8000-000000000001", note=hostile, star=True)
    again = await _annotated(client, "7c4e9a80-0000-4000-8000-000000000001", note=hostile, star=True)
    assert first == again, "one key, one event"
    assert [note["text"] for note in first["notes"]] == [hostile.strip()]
    found = await _annotated(client, "7c4e9a80-0000-4000-8000-000000000002", labels={"area": "math"}, note="second")
    assert (found["starred"], found["labels"]) == (True, {"area": "math"})
    assert [note["text"] for note in found["notes"]] == ["second", hostile.strip()]
    [listed] = (await client.get("/v1/experiments", params={"label": "area=math"})).json()["items"]
    assert (listed["name"], listed["starred"], listed["labels"]) == ("small", True, {"area": "math"})
    assert (await client.get("/v1/experiments", params={"label": "none"})).json()["items"] == []
    events = (await client.get("/v1/experiments/small/events", params={"type": "experiment.annotated"})).json()["items"]
    assert len(events) >= 2, "in the history, too"
    assert parts.run.name == "small"


async def test_a_rollout_has_marks_of_its_own(client: httpx.AsyncClient) -> None:
    [row] = (await client.get("/v1/experiments/small/experiences", params={"limit": 1})).json()["items"]
    found = await _annotated(
        client,
        "7c4e9a80-0000-4000-8000-000000000003",
        experience=row["id"],
        star=True,
        labels={"odd": "1"},
        note="look",
    )
    assert found["rollouts"] == [{"experience": row["id"], "starred": True, "labels": {"odd": "1"}}]
    assert found["notes"][0]["experience"] == row["id"]
    assert not row["starred"]
    items = (await client.get("/v1/experiments/small/experiences", params={"limit": 100})).json()["items"]
    assert [item["id"] for item in items if item["starred"]] == [row["id"]]
    page = (await client.get(f"/v1/experiments/small/experiences/{row['id']}")).json()
    assert page["experience"]["starred"]
    assert (found["starred"], found["labels"]) == (False, {}), "the run's own are others"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "send a note, star or labels"),
        ({"note": "  "}, "send a note, star or labels"),
        ({"note": "x" * 10_001}, "10000"),
        ({"note": "a\x00b"}, "matching"),
        ({"labels": {str(number): "" for number in range(65)}}, "at most 64"),
        ({"star": True, "experience": "7c4e9a80-0000-4000-8000-000000000009"}, "no experience"),
        ({"stars": True}, "stars"),
    ],
)
async def test_an_empty_or_oversized_annotation_is_refused(
    client: httpx.AsyncClient, body: dict[str, Any], words: str
) -> None:
    answer = await client.post(PATH, json=body)
    assert answer.status_code in (404, 422), answer.text
    assert words in answer.text


async def test_the_last_star_and_labels_hold_on_each_database(either: AsyncEngine) -> None:
    run = SyntheticRun(Recorder()).write()
    experience = run.recorder.ids.new()
    write = run.recorder.write
    for event in (
        ExperimentAnnotated(star=True, labels={"a": "1"}, note="one"),
        ExperimentAnnotated(star=False, by="ann"),
        ExperimentAnnotated(labels={"b": "2"}),
        ExperimentAnnotated(experience=experience, star=True, note="two", by="ann"),
    ):
        write(event, run.id, role="controller")
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    projector = Projector(log, either, clock=ManualClock())
    await projector.catch_up()
    async with either.connect() as connection:
        [row] = (await list_experiments(connection, where=ExperimentFilter(labels=("b=2",)))).items
        assert (row.starred, row.labels) == (False, {"b": "2"})
        assert (await list_experiments(connection, where=ExperimentFilter(labels=("a",)))).items == []
        notes = await list_notes(connection, run.id)
        assert [(note.text, note.author, note.experience) for note in notes] == [
            ("two", "ann", str(experience)),
            ("one", None, None),
        ]
        [mark] = await list_marks(connection, run.id)
        assert (mark.experience, mark.starred) == (str(experience), True)
    await projector.close()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.servers)])
async def either(request: pytest.FixtureRequest, tmp_path: Any, anyio_backend: str) -> Any:
    """An empty database of each kind."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'either.db'}"
    else:
        url = str(request.getfixturevalue("postgres_url"))
    engine = open_database(url)
    yield engine
    await engine.dispose()
