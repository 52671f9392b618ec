"""`Batch`: the running requests, which join, draw a token each per step, and leave. `loop` drives it on its thread."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch

from rftd.workers.devices.pinned_transfer import to_device
from rftd.workers.engines.torch.rollout.cache import SlotCache
from rftd.workers.engines.torch.rollout.draw import Draw
from rftd.workers.engines.torch.rollout.network import Network
from rftd.workers.engines.torch.rollout.recordings import FixedSteps, Recorder
from rftd.workers.engines.torch.rollout.responses import Responses
from rftd.workers.engines.torch.rollout.rows import FixedRows, Rows, SharedRows
from rftd.workers.engines.torch.rollout.running import Finished, Running
from rftd.workers.engines.torch.rollout.transfer import Drawn

PREFILL_TOKENS = 16_384
"""Prompts are prefilled together up to so many tokens, padding included."""


class Batch:
    """The running requests, at most `slots`, which draw one token each per step.

    Ordinarily equal sequences are computed once, the rows are packed, and a step attends only as far back as its
    longest row. In deterministic mode every step has the same shape, whoever is in it, and each prompt is prefilled
    alone.
    """

    def __init__(
        self,
        network: Network,
        *,
        slots: int,
        max_len: int,
        deterministic: bool,
        ahead: bool | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """`ahead`: begin a step before the tokens of the last are read, so that no side waits; None: on a GPU.

        `recorder`: repeat recorded steps; not in deterministic mode.
        """
        assert recorder is None or not deterministic
        self._network = network
        self._runs_ahead = network.device.type == "cuda" if ahead is None else ahead
        self._under_way: Drawn | None = None
        self._slots = slots
        self._max_len = max_len
        self._deterministic = deterministic
        self._responses = Responses(network)
        self._cache = SlotCache(slots=slots, max_len=max_len, dtype=network.dtype, device=network.device)
        self._rows: Rows = FixedRows(slots) if deterministic else SharedRows()
        self._of: torch.Tensor | None = None
        self._draw: Draw | None = None
        self._arranged = False
        self._ids = torch.zeros(slots, 1, dtype=torch.long, device=network.device)
        self._positions = torch.zeros(slots, 1, dtype=torch.long, device=network.device)
        self._fixed: FixedSteps | None = None
        if recorder is not None:
            self._fixed = FixedSteps(network, self._cache, recorder, ids=self._ids, positions=self._positions)
        self.version = (-1, -1)

    @property
    def live(self) -> list[Running]:
        """The running requests."""
        return self._rows.live

    @property
    def free(self) -> int:
        """The number of requests that may join."""
        return self._slots - len(self.live)

    @property
    def tokens_total(self) -> int:
        """The number of tokens drawn so far."""
        return self._responses.tokens_total

    def forget(self) -> None:
        """Gives the cache's memory up; no request is running."""
        self._cache.forget()
        if self._fixed is not None:
            self._fixed.forget()

    def caught_up(self) -> list[Finished]:
        """Takes the tokens of a step that was begun ahead; returns the requests that end with it.

        Call it before weights or requests change: what is under way was drawn from the old ones.
        """
        if self._under_way is None:
            return []
        done = self._read(self._under_way)
        self._settle(finished.running for finished in done)
        return done

    def swapped(self, version: tuple[int, int]) -> None:
        """Draws everything from these weights, from the next token on."""
        assert self._under_way is None, "caught_up() before swapped()"
        self.version = version
        if self._fixed is not None:
            self._fixed.check_weights()
        for running in self.live:
            running.mark(self.version)

    def join(self, newcomers: Sequence[Running]) -> list[Finished]:
        """Prefills the prompts and draws the first token of each; returns the requests that end with it."""
        assert 0 < len(newcomers) <= self.free
        done = self.caught_up()
        # Sorted by the prompt itself at last, so that the order in a set, which differs between processes, decides
        # nothing.
        prompts = sorted({r.request.prompt for r in newcomers}, key=lambda prompt: (-len(prompt), prompt))
        for chunk in self._chunks(prompts):
            index = {prompt: i for i, prompt in enumerate(chunk)}
            joining = [r for r in newcomers if r.request.prompt in index]
            sources = [index[r.request.prompt] for r in joining]
            logits, prefilled = self._network.prefill(chunk)
            self._make_room(max(map(len, chunk)))
            rows, placed = self._rows.join(joining, sources, [self._cache.end - len(prompt) for prompt in chunk])
            self._cache.place(rows, prefilled, placed)
            draw = self._responses.drawing(joining)
            drawn = Drawn(*draw(logits, to_device(sources, logits.device)), draw.processed)
            for running in joining:
                running.mark(self.version)
            self._draw = None
            tokens, logprobs, processed = drawn.read()
            if broken := {sources[place] for place in _broken(logprobs)}:
                self._cache.clear([row for row, prompt in zip(rows, placed, strict=True) if prompt in broken])
            ended = self._responses.take(joining, tokens, logprobs, processed)
            self._settle(finished.running for finished in ended)
            done += ended
        return done

    def step(self) -> list[Finished]:
        """Draws a token for every running request; returns the requests that end with it."""
        drawn = self._under_way or self._begin()
        self._under_way = self._begin() if self._may_run_ahead() else None
        done = self._take(self._rows.requests, drawn)
        if done and self._under_way is not None:
            done += self._read(self._under_way, without=done)
        if done or self._rows.shared:
            self._settle(finished.running for finished in done)
        return done

    def _begin(self) -> Drawn:
        """Has the device compute and draw one token more in each row; each goes on from its own, if it is alone."""
        self._make_room(0)
        if not self._arranged:
            self._arrange()
        assert self._draw is not None
        count = len(self._rows.starts)
        ids = self._ids[:count]
        positions = self._positions[:count]
        if self._fixed is not None:
            logits = self._fixed(count)
        else:
            mask = self._cache.window(count, self._width() + 1)
            logits = self._network.decode(ids, positions, mask, self._cache)
        self._cache.advance()
        drawn, logprobs = self._draw(logits, self._of)
        if not self._rows.shared:
            ids[:, 0] = drawn
            positions += 1
        return Drawn(drawn, logprobs, self._draw.processed)

    def _may_run_ahead(self) -> bool:
        """True if the next step needs nothing that only the tokens under way can tell, unless one ends a response."""
        # On a shared row the tokens decide which requests part, and a full cache has to be moved first.
        if not self._runs_ahead or self._rows.shared or self._cache.full:
            return False
        return all(len(running.tokens) + 1 < running.limit for running in self.live)

    def _read(self, drawn: Drawn, *, without: Sequence[Finished] = ()) -> list[Finished]:
        """Takes what was begun ahead, but for requests that had ended before."""
        self._under_way = None
        gone = {id(finished.running) for finished in without}
        requests = [None if id(running) in gone else running for running in self._rows.requests]
        return self._take(requests, drawn)

    def _take(self, requests: Sequence[Running | None], drawn: Drawn) -> list[Finished]:
        """Takes the tokens of a step, one for each place of `requests`; returns the requests that end with it."""
        tokens, logprobs, processed = drawn.read()
        if broken := _broken(logprobs):
            # Also rows that no request is on any more: their keys are NaN, which 0 times a hidden weight does not mend.
            self._cache.clear(self._rows.of[broken])
        return self._responses.take(requests, tokens, logprobs, processed)

    def drop(self, leaving: Iterable[Running]) -> None:
        """Frees the slots of cancelled requests."""
        assert self._under_way is None, "caught_up() before drop()"
        self._settle(leaving)

    def _chunks(self, prompts: list[tuple[int, ...]]) -> Iterator[list[tuple[int, ...]]]:
        """Prompts of like length that are prefilled together, the longest first."""
        chunk: list[tuple[int, ...]] = []
        for prompt in prompts:
            if chunk:
                longest = len(chunk[0])
                # Half of a row may be padding, and 16 tokens more: another forward costs more than so much padding.
                full = (len(chunk) + 1) * longest > PREFILL_TOKENS or longest > 2 * len(prompt) + 16
                if full or self._deterministic:
                    yield chunk
                    chunk = []
            chunk.append(prompt)
        yield chunk

    def _width(self) -> int:
        """The number of columns before `end` that any row sees."""
        if self._deterministic:
            # Of one width at every step: sums over more columns are grouped otherwise, and round otherwise.
            return self._max_len - 1
        return self._cache.end - int(self._rows.starts.min())

    def _make_room(self, ahead: int) -> None:
        """Columns for a prompt of `ahead` tokens, and one behind for the next token."""
        rows = self._rows
        if self._deterministic:
            width = ahead = self._max_len - 1
        else:
            width = self._width() if rows.live else 0
        until = None
        if self._fixed is not None and not self._arranged:  # else a step that was begun ahead would lose its tokens
            until = self._fixed.columns_until(max(width, ahead))
        moved = self._cache.reserve(len(rows.starts), width, ahead, until=until)
        if moved:
            rows.starts = rows.starts + moved
            self._arranged = False

    def _settle(self, leaving: Iterable[Running]) -> None:
        """Gives each different sequence a row of its own, after requests left or drew different tokens."""
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
        rows = self._rows
        end = self._cache.end
        device = self._ids.device
        if self._draw is None:
            self._draw = self._responses.drawing(rows.requests)
        if self._deterministic:
            rows.starts[[r is None for r in rows.requests]] = end
        self._of = to_device(rows.of, device) if rows.shared else None
        count = len(rows.starts)
        if self._fixed is not None:
            self._fixed.arrange(rows.starts)
        else:
            self._cache.hide(rows.starts)
        self._ids[:count, 0] = to_device(rows.tokens(), device)
        self._positions[:count, 0] = to_device(end - rows.starts, device)
        self._arranged = True


def _broken(logprobs: list[float]) -> list[int]:
    """The places of the log-probabilities that are NaN."""
    # NaN survives a sum, and a sum of a list is faster than a look at each.
    if not math.isnan(sum(logprobs)):
        return []
    return [place for place, logprob in enumerate(logprobs) if math.isnan(logprob)]
