"""Searching words: in the answers of one step, and of a whole run once indexed; and the rate of indexing.

Answers are passages of this repository's pages, of a hundred tokens by a byte-level BPE trained on them. Counts wall
time and processor time, the decoding process included. Run: python -P tests/bench/words.py [EXPERIENCES [postgres]]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import httpx
import msgspec
from sqlalchemy import text

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import median_of, tell
from projector_postgres import server
from synthetic.log.recorder import Recorder
from synthetic.log.text_run import TextRun, text_spec
from texts import ROOT, CountedTexts, KnownOrigin, rollouts, tokenizer_text

from rftd.daemon.http.api.app import make_app
from rftd.ops.clock import SystemClock
from rftd.storage.database.engine import open_database, sqlite_url
from rftd.storage.files.artifacts import ArtifactStore
from rftd.storage.projector.projector import Projector
from rftd.streams.memory import MemoryLog

MEMBERS, ANSWER, STEP_GROUPS, REPEATS = 16, 100, 32, 5
QUERIES = ("weights", "checkpoint trainer", '"event log"', "nonsenseword")


class Figures(msgspec.Struct):
    """Times of one search, in milliseconds; rates of indexing in answers per second."""

    experiences: int
    indexed_per_s: float
    index_mb: float
    run_wall_ms: float
    """The slowest of the queries, once indexed."""
    run_cpu_ms: float
    step_answers: int
    step_wall_ms: float
    step_cpu_ms: float


async def measured(folder: Path, experiences: int, tables: str) -> Figures:
    from tokenizers import Tokenizer

    corpus = [path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))]
    tokenizer_json = tokenizer_text(corpus)
    tokenizer = Tokenizer.from_str(tokenizer_json)
    ids = [token for page in corpus for token in tokenizer.encode(page).ids]
    spec = text_spec(folder, "texts")
    copies = ("", ArtifactStore(Path(spec.job_dir) / "artifacts").put(tokenizer_json.encode()))
    run = TextRun(Recorder(), name="texts", job_dir=spec.job_dir, spec=spec, tokenizers=copies, repeat=MEMBERS)
    run.begin()
    run.warm_up()
    log, engine = MemoryLog(), open_database(tables or sqlite_url(folder / "state.db"))
    projector = Projector(log, engine, clock=SystemClock())
    spoken = rollouts(ids * (1 + experiences * ANSWER // len(ids) + 1), ANSWER)
    appended = 0
    for group in range(experiences // MEMBERS):
        run.group([next(spoken) for _ in range(MEMBERS)])
        if group + 1 == STEP_GROUPS:
            run.plan(stage=1, take=STEP_GROUPS * MEMBERS)
            step = run.version + 1
            run.complete(stage=1, items=STEP_GROUPS * MEMBERS)
        if group % 100 == 99 or group + 1 == experiences // MEMBERS:
            await log.append(run.recorder.drafts[appended:])
            appended = len(run.recorder.drafts)
            await projector.catch_up()
    app = make_app(operations=KnownOrigin(log), log=log, engine=engine, projector=projector, words=folder / "words")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:7070") as client:
        began = time.perf_counter()
        while (answer := await search(client, QUERIES[0]))["share"] < 1:
            pass
        indexed_s = time.perf_counter() - began
        of_run = [await cost(client, query) for query in QUERIES]
        of_step = [await cost(client, query, step=step) for query in QUERIES]
    if tables:
        async with engine.connect() as connection:
            size = text(f"SELECT pg_total_relation_size('words_of_{run.id.hex}')")
            size_bytes = int(await connection.scalar(size) or 0)
    else:
        size_bytes = sum(path.stat().st_size for path in (folder / "words").iterdir())
    await engine.dispose()
    return Figures(
        experiences=answer["indexed"],
        indexed_per_s=round(answer["indexed"] / indexed_s),
        index_mb=round(size_bytes / 1e6, 1),
        run_wall_ms=max(wall for wall, _ in of_run),
        run_cpu_ms=max(cpu for _, cpu in of_run),
        step_answers=STEP_GROUPS * MEMBERS,
        step_wall_ms=max(wall for wall, _ in of_step),
        step_cpu_ms=max(cpu for _, cpu in of_step),
    )


async def search(client: httpx.AsyncClient, query: str, **parameters: int) -> dict[str, float]:
    answer = await client.get("/v1/experiments/texts/words", params={"q": query, **parameters})
    answer.raise_for_status()
    body: dict[str, float] = answer.json()
    return body


async def cost(client: httpx.AsyncClient, query: str, **parameters: int) -> tuple[float, float]:
    """Median wall and processor time of one search, in milliseconds."""
    counted = CountedTexts()
    walls, cpus = [], []
    for _ in range(REPEATS):
        began_s, began_cpu_s = time.perf_counter(), counted.now_s()
        await search(client, query, **parameters)
        walls.append(1000 * (time.perf_counter() - began_s))
        cpus.append(1000 * (counted.now_s() - began_cpu_s))
    return median_of(walls, 1), median_of(cpus, 1)


def main() -> None:
    experiences = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory() as folder:
        if sys.argv[2:] == ["postgres"]:
            with server(None) as url:
                tell(asyncio.run(measured(Path(folder), experiences, url)))
        else:
            tell(asyncio.run(measured(Path(folder), experiences, "")))


if __name__ == "__main__":
    main()
