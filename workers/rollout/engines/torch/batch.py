"""The running requests: who joins, one token for each, who leaves. No thread and no clock: `loop` drives it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch

from rftd.ops.errors import RolloutError
from rftd.workers.rollout.engine import Sampling
from rftd.workers.rollout.engines.torch.cache import SlotCache
from rftd.workers.rollout.engines.torch.draw import Draw
from rftd.workers.rollout.engines.torch.network import Network
from rftd.workers.rollout.engines.torch.rows import FixedRows, Rows, SharedRows
from rftd.workers.rollout.engines.torch.running import Finished, Running
from rftd.workers.rollout.engines.torch.stopping import StopTexts

PREFILL_TOKENS = 16_384
"""Prompts are prefilled together up to so many tokens, padding included."""


_IDLE = Sampling(temperature=0.0, max_tokens=1)
"""How the empty rows of deterministic mode are drawn."""


class Batch:
    """At most `slots` requests that draw one token each per step.

    Ordinarily equal sequences are computed once, the rows are packed, and a step attends only as far back as its
    longest row. In deterministic mode every step has the same shape, whoever is in it, and each prompt is prefilled
    alone.
    """

    def __init__(self, network: Network, *, slots: int, max_len: int, deterministic: bool) -> None:
        self._network = network
        self._slots = slots
        self._max_len = max_len
        self._deterministic = deterministic
        self._stop_texts = StopTexts(network.tokenizer)
        self._eos = torch.tensor(sorted(network.eos), dtype=torch.long, device=network.device)
        self._cache = SlotCache(slots=slots, max_len=max_len, dtype=network.dtype, device=network.device)
        self._rows: Rows = FixedRows(slots) if deterministic else SharedRows()
        self._of: torch.Tensor | None = None
        self._draw: Draw | None = None
        self._arranged = False
        self._ids = torch.zeros(slots, 1, dtype=torch.long, device=network.device)
        self._positions = torch.zeros(slots, 1, dtype=torch.long, device=network.device)
        self.version = (-1, -1)

    @property
    def live(self) -> list[Running]:
        """The running requests."""
        return self._rows.live

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
            rows, placed = self._rows.join(joining, sources, [self._cache.end - len(prompt) for prompt in chunk])
            self._cache.place(rows, prefilled, placed)
            tokens, logprobs = self._drawing(joining)(logits, torch.tensor(sources, device=logits.device))
            for running in joining:
                running.mark(self.version)
            self._draw = None
            ended = self._take(joining, tokens.tolist(), logprobs.tolist())
            self._settle(finished.running for finished in ended)
            done += ended
        return done

    def step(self) -> list[Finished]:
        """One token more for every running request; those that are finished with it."""
        self._make_room(0)
        if not self._arranged:
            self._arrange()
        assert self._draw is not None
        count = len(self._rows.starts)
        mask = self._cache.window(count, self._width() + 1)
        ids, positions = self._ids[:count], self._positions[:count]
        logits = self._network.decode(ids, positions, mask, self._cache)
        self._cache.advance()
        drawn, logprobs = self._draw(logits, self._of)
        done = self._take(self._rows.requests, drawn.tolist(), logprobs.tolist())
        if done or self._rows.shared:
            self._settle(finished.running for finished in done)
        else:
            ids[:, 0] = drawn
            positions += 1
        return done

    def drop(self, leaving: Iterable[Running]) -> None:
        """Frees the slots of cancelled requests."""
        self._settle(leaving)

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
        return self._cache.end - int(self._rows.starts.min())

    def _make_room(self, ahead: int) -> None:
        """Columns for a prompt of `ahead` tokens, and one behind for the next token."""
        rows = self._rows
        if self._deterministic:
            width = ahead = self._max_len - 1
        else:
            width = self._width() if rows.live else 0
        moved = self._cache.reserve(len(rows.starts), width, ahead)
        if moved:
            rows.starts = rows.starts + moved
            self._arranged = False

    def _settle(self, leaving: Iterable[Running]) -> None:
        """After some left, or drew tokens of their own: each sequence has a row, each row a sequence."""
        gone = set(map(id, leaving))
        rows = self._rows
        kept = np.array([place for place, r in enumerate(rows.requests) if r is not None and id(r) not in gone], int)
        sources, targets, order = rows.settle(kept)
        if len(sources):
            self._cache.move(sources, targets, self._width())
        if self._draw is not None:
            self._draw = self._draw.of(order) if len(order) and not self._deterministic else None
        self._arranged = False

    def _arrange(self) -> None:
        """Prepares the tensors of the next steps after the batch changed."""
        rows, end, device = self._rows, self._cache.end, self._ids.device
        if self._draw is None:
            self._draw = self._drawing(rows.requests)
        if self._deterministic:
            rows.starts[[r is None for r in rows.requests]] = end
        self._of = torch.from_numpy(rows.of).to(device) if rows.shared else None
        count = len(rows.starts)
        self._cache.hide(rows.starts)
        self._ids[:count, 0] = torch.from_numpy(rows.tokens())
        self._positions[:count, 0] = torch.from_numpy(end - rows.starts)
        self._arranged = True

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
