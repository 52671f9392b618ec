"""The running requests: who joins, one token for each, who leaves. No thread and no clock: `loop` drives it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from rftd.ops.errors import RolloutError
from rftd.workers.rollout.engine import Sampling
from rftd.workers.rollout.engines.torch.cache import SlotCache
from rftd.workers.rollout.engines.torch.draw import Draw
from rftd.workers.rollout.engines.torch.network import Network
from rftd.workers.rollout.engines.torch.running import Finished, Running
from rftd.workers.rollout.engines.torch.stopping import StopTexts

PREFILL_TOKENS = 16_384
"""Prompts are prefilled together up to so many tokens, padding included."""


_IDLE = Sampling(temperature=0.0, max_tokens=1)
"""How the empty rows of deterministic mode are drawn."""


class Batch:
    """At most `slots` requests that draw one token each per step.

    Ordinarily the rows are packed and a step attends only as far back as its longest row. In deterministic mode
    every step has the same shape, whoever is in it, and each prompt is prefilled alone.
    """

    def __init__(self, network: Network, *, slots: int, max_len: int, deterministic: bool) -> None:
        self._network = network
        self._slots = slots
        self._max_len = max_len
        self._deterministic = deterministic
        self._stop_texts = StopTexts(network.tokenizer)
        self._eos = torch.tensor(sorted(network.eos), dtype=torch.long, device=network.device)
        self._cache = SlotCache(slots=slots, max_len=max_len, dtype=network.dtype, device=network.device)
        self._rows: list[Running | None] = [None] * slots if deterministic else []
        self._draw: Draw | None = None
        self._ids = torch.zeros(slots, 1, dtype=torch.long, device=network.device)
        self._positions = torch.zeros(slots, 1, dtype=torch.long, device=network.device)
        self.version = (-1, -1)

    @property
    def live(self) -> list[Running]:
        """The running requests."""
        return [row for row in self._rows if row is not None]

    @property
    def free(self) -> int:
        """How many may join."""
        return self._slots - len(self.live)

    def swapped(self, version: tuple[int, int]) -> None:
        """From the next token on, everything is drawn from these weights."""
        self.version = version
        for running in self.live:
            running.mark(self.version)

    def join(self, newcomers: Sequence[Running]) -> list[Finished]:
        """Prefills and draws the first token of each; the requests that are finished with it."""
        assert 0 < len(newcomers) <= self.free
        prompts = sorted({r.request.prompt for r in newcomers}, key=lambda prompt: (-len(prompt), prompt))
        done: list[Finished] = []
        for chunk in self._chunks(prompts):
            index = {prompt: i for i, prompt in enumerate(chunk)}
            joining = [r for r in newcomers if r.request.prompt in index]
            sources = [index[r.request.prompt] for r in joining]
            logits, prefilled = self._network.prefill(chunk)
            self._make_room(max(map(len, chunk)))
            rows = self._seat(joining)
            self._cache.place(rows, prefilled, sources)
            draw = self._drawing(joining)
            tokens, logprobs = draw(logits[torch.tensor(sources, device=logits.device)])
            for running in joining:
                running.start = self._cache.end - len(running.request.prompt)
                running.mark(self.version)
            done += self._take(joining, tokens.tolist(), logprobs.tolist())
        return self._leave(done)

    def step(self) -> list[Finished]:
        """One token more for every running request; those that are finished with it."""
        self._make_room(0)
        if self._draw is None:
            self._arrange()
        assert self._draw is not None
        count = len(self._rows)
        mask = self._cache.window(count, self._width() + 1)
        ids, positions = self._ids[:count], self._positions[:count]
        logits = self._network.decode(ids, positions, mask, self._cache)
        self._cache.advance()
        drawn, logprobs = self._draw(logits)
        ids[:, 0] = drawn
        positions += 1
        return self._leave(self._take(self._rows, drawn.tolist(), logprobs.tolist()))

    def drop(self, leaving: Iterable[Running]) -> None:
        """Frees the slots of cancelled requests."""
        gone = set(map(id, leaving))
        self._free([row for row, running in enumerate(self._rows) if id(running) in gone])

    def _chunks(self, prompts: list[tuple[int, ...]]) -> Iterator[list[tuple[int, ...]]]:
        """Prompts of like length that are prefilled together, the longest first."""
        chunk: list[tuple[int, ...]] = []
        for prompt in prompts:
            if chunk:
                longest = len(chunk[0])
                full = (len(chunk) + 1) * longest > PREFILL_TOKENS or longest > 2 * len(prompt) + 16
                if full or self._deterministic:
                    yield chunk
                    chunk = []
            chunk.append(prompt)
        yield chunk

    def _width(self) -> int:
        """How many columns before `end` can matter."""
        if self._deterministic:
            return self._max_len - 1
        return self._cache.end - min(running.start for running in self.live)

    def _make_room(self, ahead: int) -> None:
        """Columns for a prompt of `ahead` tokens, and one behind for the next token."""
        if self._deterministic:
            width = ahead = self._max_len - 1
        else:
            width = self._width() if self._rows else 0
        moved = self._cache.reserve(len(self._rows), width, ahead)
        if moved:
            for running in self.live:
                running.start += moved
            self._draw = None

    def _seat(self, joining: Sequence[Running]) -> list[int]:
        if self._deterministic:
            rows = [row for row, running in enumerate(self._rows) if running is None][: len(joining)]
            for row, running in zip(rows, joining, strict=True):
                self._rows[row] = running
        else:
            rows = list(range(len(self._rows), len(self._rows) + len(joining)))
            self._rows.extend(joining)
        self._draw = None
        return rows

    def _arrange(self) -> None:
        """Prepares the tensors of the next steps after the batch changed."""
        rows, end = self._rows, self._cache.end
        self._draw = self._drawing(rows)
        self._cache.hide([end if r is None else r.start for r in rows])
        count, device = len(rows), self._ids.device
        self._ids[:count, 0] = torch.tensor([0 if r is None else r.tokens[-1] for r in rows], device=device)
        self._positions[:count, 0] = torch.tensor([0 if r is None else end - r.start for r in rows], device=device)

    def _drawing(self, rows: Sequence[Running | None]) -> Draw:
        samplings = [_IDLE if r is None else r.request.sampling for r in rows]
        keys = [0 if r is None else r.key for r in rows]
        positions = [0 if r is None else len(r.tokens) for r in rows]
        return Draw(samplings, keys, positions, eos=self._eos, device=self._network.device)

    def _take(self, runnings: Sequence[Running | None], tokens: list[int], logprobs: list[float]) -> list[Finished]:
        done: list[Finished] = []
        eos = self._network.eos
        for running, token, logprob in zip(runnings, tokens, logprobs, strict=True):
            if running is None:
                continue
            drawn = running.tokens
            drawn.append(token)
            running.logprobs.append(logprob)
            if logprob != logprob:  # NaN
                error = RolloutError(f"the model gave no number at token {len(drawn) - 1} of {running.request.id}")
                done.append(Finished(running, error))
            elif token in eos or (running.request.sampling.stop and self._stopped(running)):
                done.append(Finished(running, running.generation("stop")))
            elif len(drawn) == running.limit:
                done.append(Finished(running, running.generation("length")))
        return done

    def _stopped(self, running: Running) -> bool:
        sampling = running.request.sampling
        return len(running.tokens) >= sampling.min_tokens and self._stop_texts.ends(running.tokens, sampling.stop)

    def _leave(self, done: list[Finished]) -> list[Finished]:
        if done:
            self.drop(finished.running for finished in done)
        return done

    def _free(self, rows: list[int]) -> None:
        """Empties these rows, given in ascending order; packs the others to the front."""
        if not rows:
            return
        self._draw = None
        if self._deterministic:
            for row in rows:
                self._rows[row] = None
            return
        gone = set(rows)
        kept = len(self._rows) - len(gone)
        movers = [row for row in range(kept, len(self._rows)) if row not in gone]
        holes = [row for row in rows if row < kept]
        for source, target in zip(movers, holes, strict=True):
            self._rows[target] = self._rows[source]
        del self._rows[kept:]
        if movers:
            self._cache.move(movers, holes, self._width())
