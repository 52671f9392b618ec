"""Processor time of texts: one experience, a group of 16 side by side, a window of tokens, through the API and warm.

Counts the daemon and the process that decodes. The tokenizer is a byte-level BPE trained on this repository's pages;
answers have a thousand tokens, prompts two hundred. The first request of all opens the tokenizer.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from uuid import UUID

import httpx
import msgspec
import psutil

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import median_of, tell
from synthetic.daemon.log_operations import LogOperations
from synthetic.log.recorder import Recorder
from synthetic.log.text_run import SyntheticRollout, TextRun, text_spec

from rftd.daemon.http.api.app import make_app
from rftd.daemon.run.operations import TextOrigin
from rftd.ops.clock import SystemClock
from rftd.storage.database.engine import open_database, sqlite_url
from rftd.storage.files.artifacts import ArtifactStore
from rftd.storage.projector.projector import Projector
from rftd.streams.memory import MemoryLog

ROOT: Final = Path(__file__).parents[2]
MEMBERS, GROUPS, ANSWER, PROMPT, REPEATS = 16, 20, 1000, 200, 30


class Figures(msgspec.Struct):
    """Processor time in milliseconds."""

    vocabulary: int
    first_ms: float
    """The first text of all, with the start of the process and the opening of the tokenizer."""
    one_ms: float
    group_ms: float
    window_ms: float
    """1,024 tokens of one experience, with the text of each."""


class KnownOrigin(LogOperations):
    """Keeps the specification in memory, as a supervisor does."""

    origin: TextOrigin | None = None

    async def text_origin(self, experiment: UUID) -> TextOrigin | None:
        self.origin = self.origin or await super().text_origin(experiment)
        return self.origin


class CountedTexts:
    """Processor time of this process and of its children."""

    def __init__(self) -> None:
        self._own = psutil.Process()

    def now_s(self) -> float:
        """Seconds so far, of children too as long as they live."""
        processes = [self._own, *self._own.children(recursive=True)]
        return sum(sum(process.cpu_times()[:2]) for process in processes)


def tokenizer_text(corpus: list[str]) -> str:
    """A byte-level BPE of 8,000 tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=8000, initial_alphabet=alphabet, show_progress=False)
    inner.train_from_iterator(corpus, trainer)
    return inner.to_str()


def rollouts(ids: list[int], length: int) -> Iterator[SyntheticRollout]:
    """Rollouts with consecutive tokens of the pages."""
    prompt = tuple(ids[:PROMPT])
    for start in range(PROMPT, len(ids) - length, length):
        yield SyntheticRollout(prompt_ids=prompt, parts=(), extra=tuple(ids[start : start + length]))


async def measured(folder: Path) -> Figures:
    from tokenizers import Tokenizer

    corpus = [path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))]
    text = tokenizer_text(corpus)
    tokenizer = Tokenizer.from_str(text)
    ids = [token for page in corpus for token in tokenizer.encode(page).ids]
    spec = text_spec(folder, "texts")
    copies = ("", ArtifactStore(Path(spec.job_dir) / "artifacts").put(text.encode()))
    run = TextRun(Recorder(), name="texts", job_dir=spec.job_dir, spec=spec, tokenizers=copies, repeat=MEMBERS)
    run.begin()
    run.warm_up()
    spoken = rollouts(ids * 3, ANSWER)
    groups = [run.group([next(spoken) for _ in range(MEMBERS)]) for _ in range(GROUPS)]
    log, engine = MemoryLog(), open_database(sqlite_url(folder / "state.db"))
    for start in range(0, len(run.recorder.drafts), 100):
        await log.append(run.recorder.drafts[start : start + 100])
    projector = Projector(log, engine, clock=SystemClock())
    await projector.catch_up()
    app = make_app(operations=KnownOrigin(log), log=log, engine=engine, projector=projector)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:7070/v1/experiments/texts") as client:
        listed = (await client.get("/experiences", params={"limit": REPEATS})).json()["items"]
        one = [f"/experiences/{row['id']}/text" for row in listed]
        first_ms = await cost_ms(client, one[:1])
        figures = Figures(
            vocabulary=tokenizer.get_vocab_size(),
            first_ms=first_ms,
            one_ms=await cost_ms(client, one),
            group_ms=await cost_ms(client, [f"/groups/{group}/text" for group in groups]),
            window_ms=await cost_ms(client, [path.replace("/text", "/tokens") for path in one]),
        )
    await engine.dispose()
    return figures


async def cost_ms(client: httpx.AsyncClient, paths: list[str]) -> float:
    """Median of repeated rounds over the paths, for one request."""
    counted = CountedTexts()
    rounds = []
    for _ in range(1 if len(paths) == 1 else 5):
        began = counted.now_s()
        for path in paths:
            (await client.get(path)).raise_for_status()
        rounds.append(1000 * (counted.now_s() - began) / len(paths))
    return median_of(rounds, 1)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        tell(asyncio.run(measured(Path(folder))))


if __name__ == "__main__":
    main()
