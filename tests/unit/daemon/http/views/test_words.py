"""Words found in answers over HTTP: an index for each experiment, filled by the requests."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text
from synthetic.daemon.daemon_parts import DaemonParts, open_daemon
from synthetic.log.text_run import SyntheticRollout, TextRun, text_run, tokenizer_json

from rftd.daemon.http.api.app import make_app
from rftd.daemon.text.word_files import searched_phrases
from rftd.daemon.text.word_tables import query, vector
from rftd.ops.errors import UsageError
from rftd.streams.events.experiment import PayloadsDropped

pytestmark = pytest.mark.anyio
ANSWERS = ("the cat sat", "The CAT ran", "a dog sat <b>", "nothing", "one", "two", "three cats", "cat\u00e9gorie")


def spoken(*answers: str) -> list[SyntheticRollout]:
    return [SyntheticRollout(parts=((answer, True),)) for answer in answers]


@pytest.fixture
async def run(tmp_path: Path, anyio_backend: str) -> TextRun:
    """A run of two groups, both planned."""
    run = text_run(tmp_path, tokenizer=tokenizer_json())
    run.group(spoken(*ANSWERS[:4]))
    run.group(spoken(*ANSWERS[4:]))
    run.plan(stage=1, take=8)
    run.complete(stage=1, items=8)
    return run


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.servers)])
async def parts(request: pytest.FixtureRequest, tmp_path: Path, run: TextRun) -> AsyncIterator[DaemonParts]:
    tables = str(request.getfixturevalue("postgres_url")) if request.param == "postgres" else ""
    async with open_daemon(tmp_path, run=run, tables=tables) as opened:
        opened.app = make_app(
            operations=opened.operations,
            log=opened.log,
            engine=opened.engine,
            projector=opened.projector,
            words=tmp_path / "words",
        )
        yield opened


async def search(client: httpx.AsyncClient, q: str, **params: object) -> dict:
    """The answer once the index is complete: one request indexes for a second."""
    while True:
        query = {"q": q, **{name: str(parameter) for name, parameter in params.items()}}
        answer = await client.get("/v1/experiments/texts/words", params=query)
        assert answer.status_code == 200, answer.text
        if (matches := answer.json())["share"] == 1:
            return matches


async def indices(parts: DaemonParts, tmp_path: Path) -> int:
    """Number of indices of either kind."""
    if parts.engine.dialect.name == "sqlite":
        return len(list((tmp_path / "words").glob("*.db*")))
    async with parts.engine.connect() as connection:
        tables = await connection.scalar(text("SELECT COUNT(*) FROM pg_tables WHERE tablename LIKE 'words_of_%'"))
    return int(tables or 0)


@pytest.mark.parametrize(
    ("q", "passages"),
    [
        ("cat", ["The CAT ran", "the cat sat"]),
        ("sat cat", ["the cat sat"]),
        ('"cat sat"', ["the cat sat"]),
        ('"sat cat"', []),
        ("sat", ["a dog sat <b>", "the cat sat"]),
        ("answer OR NEAR( *", []),
        ("categorie", ["cat\u00e9gorie"]),
    ],
)
@pytest.mark.parametrize("of_step", [False, True])
async def test_answers_have_all_the_words(parts: DaemonParts, q: str, passages: list[str], of_step: bool) -> None:
    async with parts.client() as client:
        matches = await search(client, q, **({"step": 3} if of_step else {}))
    assert sorted(item["passage"] for item in matches["items"]) == sorted(passages)
    assert (matches["total"], matches["indexed"], matches["share"]) == (len(passages), 8, 1.0)
    assert all(item["experience"]["step"] == 3 for item in matches["items"])


async def test_matches_come_in_pages_and_new_answers_are_added(parts: DaemonParts, run: TextRun) -> None:
    async with parts.client() as client:
        page = await search(client, "sat", limit=1)
        assert (len(page["items"]), page["total"]) == (1, 2)
        second = await search(client, "sat", limit=1, before=page["next"])
        assert (len(second["items"]), second["next"]) == (1, None)
        before = len(run.recorder.drafts)
        run.group(spoken("sat again", "x", "y", "z"))
        await parts.log.append(run.recorder.drafts[before:])
        await parts.projector.catch_up()
        later = await search(client, "sat", limit=1)
    assert (later["items"][0]["passage"], later["total"], later["indexed"]) == ("sat again", 3, 12)


@pytest.mark.parametrize("parts", ["sqlite"], indirect=True)
async def test_a_damaged_index_is_made_anew(parts: DaemonParts, run: TextRun, tmp_path: Path) -> None:
    folder = tmp_path / "words"
    folder.mkdir()
    (folder / f"{run.id.hex}.db").write_bytes(b"no database at all" * 1000)
    async with parts.client() as client:
        assert (await search(client, "dog"))["total"] == 1
    other = sqlite3.connect(folder / f"{run.id.hex}.db")
    assert other.execute("SELECT COUNT(*) FROM answers").fetchone() == (8,)
    other.close()


@pytest.mark.parametrize("parts", [pytest.param("postgres", marks=pytest.mark.servers)], indirect=True)
async def test_tables_emptied_by_a_crash_are_filled_anew(parts: DaemonParts, run: TextRun) -> None:
    async with parts.client() as client:
        assert (await search(client, "dog"))["total"] == 1
        async with parts.engine.begin() as connection:
            await connection.execute(text(f"TRUNCATE word_indices, words_of_{run.id.hex}"))
        assert (await search(client, "dog"))["total"] == 1
        async with parts.engine.begin() as connection:
            await connection.execute(text("TRUNCATE word_indices"))
        assert (await search(client, "dog"))["total"] == 1


async def test_dropped_payloads_take_their_index_along(parts: DaemonParts, run: TextRun, tmp_path: Path) -> None:
    async with parts.client() as client:
        await search(client, "dog")
        assert await indices(parts, tmp_path)
        before = len(run.recorder.drafts)
        run.recorder.write(PayloadsDropped(reason="ended", records=8, size_bytes=1), run.id, role="controller")
        await parts.log.append(run.recorder.drafts[before:])
        refused = await client.get("/v1/experiments/texts/words", params={"q": "dog"})
    assert refused.status_code == 404
    assert "removed or dropped" in refused.json()["detail"]
    assert not await indices(parts, tmp_path)


async def test_without_a_tokenizer_the_reason_is_named(parts: DaemonParts, run: TextRun) -> None:
    shutil.rmtree(run.job_dir)
    async with parts.client() as client:
        refused = await client.get("/v1/experiments/texts/words", params={"q": "dog"})
    assert refused.status_code == 404
    assert "model folder" in refused.json()["detail"]


def test_queries_are_plain_words() -> None:
    assert searched_phrases('a "b  c" d"') == ["b  c", "a", "d"]
    for empty in ("", '""', "- *", '"  "'):
        with pytest.raises(UsageError, match="no word"):
            searched_phrases(empty)


def test_hostile_answers_become_vectors_within_the_bounds_of_postgres() -> None:
    assert vector("It's <b>x\\y</b>\x00 It") == "'it':1,7 's':2 'b':3,6 'x':4 'y':5"
    assert query(["it's", "- *", "caf\u00e9"]) == "('it' <-> 's') & ('cafe')"
    assert len(vector("x" * 1_000_000)) < 300
    assert len(vector(" ".join(f"{n:050}" for n in range(40_000)))) < 1_100_000
    assert vector("a " * 1000).count(",") == 255
