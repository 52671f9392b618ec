"""Every read of tables answers alike whether they are in SQLite or in Postgres."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from synthetic.daemon.daemon_parts import DaemonParts, open_daemon
from synthetic.log.recorder import Recorder
from synthetic.log.saved_run import SavedRun
from synthetic.log.synthetic_run import SyntheticRun

from rftd.storage.files.artifacts import ArtifactStore
from rftd.storage.queries.experience_pages import ORDERS

pytestmark = pytest.mark.anyio

RUN: Final = "/v1/experiments/small"
FILTERS: Final = (
    "first_step=3&last_step=4",
    "min_reward=0.2&max_reward=0.9",
    "state=planned",
    "state=retired",
    "state=waiting",
    "taskset=train",
    "stage=1",
    "row=1",
    "finish=stop",
    "version=2",
    "part=accuracy&min_part=0.5",
)
READS: Final = (
    *("/v1/experiments?order=oldest", "/v1/experiments?state=completed&state=running", "/v1/experiments?words=small"),
    *("/v1/experiments?order=reward", "/v1/experiments?order=-reward&limit=1", "/v1/experiments?label=nobody"),
    *(RUN, f"{RUN}/summary", f"{RUN}/steps", f"{RUN}/steps?first=3&metrics=critic/rewards/mean"),
    *(f"{RUN}/batches/3", f"{RUN}/evals", f"{RUN}/evals?taskset=held_out", f"{RUN}/evals/4?against=3&order=worst"),
    *(f"{RUN}/held-out/1", f"{RUN}/lengths", f"{RUN}/drops", f"{RUN}/groups", f"{RUN}/groups?order=oldest&limit=2"),
    *(f"{RUN}/rows/0/text", f"{RUN}/events", f"{RUN}/tasks", f"{RUN}/annotations", f"{RUN}/moment", f"{RUN}/why"),
    *(f"{RUN}/checkpoints?deleted=true", f"{RUN}/checkpoints?order=oldest&limit=1", f"{RUN}/timeline?points=20"),
    *(f"{RUN}/experiences?order={order}&limit=7" for order in ORDERS),
    *(f"{RUN}/experiences?{filters}" for filters in FILTERS),
    *(f"{RUN}/experiences?{filters}&order={order}" for filters, order in itertools.product(FILTERS[:3], ORDERS)),
    *(f"/v1/series?runs=small&metrics=reward&metrics=loss&by={by}&points=5" for by in ("step", "time", "tokens")),
    *("/v1/lineage?id=small/weights/4", "/v1/dead-letters?all=true"),
    *("/v1/workers", "/v1/streams"),
)
OF_TIME: Final = frozenset(
    {"asked_at", "now", "waits", "since", "age_s", "uptime_s", "lag", "seconds_left", "pace", "rate"}
)
"""Fields that change between two requests."""


async def answers(parts: DaemonParts) -> dict[str, Any]:
    """The answer of each read, and of the reads of the first experience in them; pages are followed to their end."""
    found: dict[str, Any] = {}
    async with parts.client() as client:
        rows = (await client.get(f"{RUN}/experiences?order=oldest&limit=40")).json()["items"]
        of_rows = [f"{RUN}/experiences/{row['id']}{more}" for row in rows[::13] for more in ("", "/text", "/tokens")]
        of_groups = [f"{RUN}/groups/{row['group']}/text" for row in rows[::13]]
        for url in (*READS, *of_rows, *of_groups):
            answer = await client.get(url)
            found[url] = answer.status_code, without_times(answer.json())
            cursor = answer.json().get("next") if "cursor" not in url and "limit" in url else None
            while cursor is not None and answer.status_code == 200:
                answer = await client.get(url, params={"cursor": cursor})
                page = answer.json()
                found[f"{url} {cursor}"] = answer.status_code, without_times(page)
                cursor = page.get("next")
    return found


def without_times(value: Any) -> Any:
    """An answer without what differs between two moments."""
    if isinstance(value, dict):
        return {name: without_times(field) for name, field in value.items() if name not in OF_TIME}
    return [without_times(field) for field in value] if isinstance(value, list) else value


def differences(one: Any, other: Any, where: str) -> Iterator[str]:
    """The places at which two answers differ."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for name in one:
            yield from differences(one[name], other[name], f"{where} {name}")
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for number, pair in enumerate(zip(one, other, strict=True)):
            yield from differences(*pair, f"{where} {number}")
    elif one != other:
        yield f"{where}: {one!r:.200} and {other!r:.200}"


@pytest.mark.parametrize("kind", ["complete", "saved"])
async def test_every_view_answers_alike_on_both_databases(tmp_path: Path, postgres_url: str, kind: str) -> None:
    job_dir = tmp_path / "job"
    if kind == "complete":
        run = SyntheticRun(Recorder(), job_dir=str(job_dir), artifacts=ArtifactStore(job_dir / "artifacts")).write()
    else:
        run = SavedRun(Recorder(), name="small", job_dir=str(job_dir)).write()
    async with open_daemon(tmp_path, run=run) as on_file:
        expected = await answers(on_file)
    async with open_daemon(tmp_path, run=run, tables=postgres_url) as on_server:
        found = await answers(on_server)
    assert expected.keys() == found.keys()
    assert [text for url in expected for text in differences(expected[url], found[url], url)] == []
    refused = {url: status for url, (status, _) in expected.items() if status != 200}
    assert all(status < 500 for status in refused.values()), refused
    assert len(refused) < len(expected) / 10, refused
