"""`Batch`: the running requests, which join, draw a token each per step, and leave. Driven by `loop` on its thread."""

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
"""Maximum tokens of prompts prefilled together, padding included."""


class Batch:
    """The running requests, at most `slots`, drawing one token each per step.

    Normally equal sequences are computed once, the rows are packed, and a step attends only as far back as its longest
    row. In deterministic mode every step has the same shape, whichever requests run, and each prompt is prefilled
    separately.
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
        """`max_len` is the maximum number of tokens of a request with its prompt. `ahead`: a step begins before the
        last step's tokens are read, so that neither host nor device waits; None: only on a GPU. `recorder` repeats
        recorded steps; not in deterministic mode.
        """
        assert recorder is None or not deterministic
        self._network = network
        self._runs_ahead = network.device.type == "cuda" if ahead is None else ahead
        self._step_ahead: Drawn | None = None
        self._slots = slots
        self._max_len = max_len
        self._deterministic = deterministic
        self._responses = Responses(network)
        self._cache = SlotCache(slots=slots, max_len=max_len, dtype=network.dtype, device=network.device)
        self._rows: Rows = FixedRows(slots) if deterministic else SharedRows()
        self._row_of: torch.Tensor | None = None
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
        """Running requests, in the order of their rows."""
        return self._rows.live

    @property
    def free(self) -> int:
        """Number of requests that may join now, out of `slots`."""
        return self._slots - len(self.live)

    @property
    def tokens_total(self) -> int:
        """Total number of tokens drawn, over all requests."""
        return self._responses.tokens_total

    def forget(self) -> None:
        """Frees the cache's memory; only while no request is running."""
        self._cache.forget()
        if self._fixed is not None:
            self._fixed.forget()

    def caught_up(self) -> list[Finished]:
        """Reads the tokens of a step begun ahead, if any, and returns the requests finished by them.

        To be called before weights or requests change: the step ahead was computed with the old ones.
        """
        if self._step_ahead is None:
            return []
        done = self._read(self._step_ahead)
        self._settle(finished.running for finished in done)
        return done

    def swapped(self, version: tuple[int, int]) -> None:
        """Records that the network now has the weights of `version`, from which the next tokens are drawn."""
        assert self._step_ahead is None, "caught_up() before swapped()"
        self.version = version
        if self._fixed is not None:
            self._fixed.check_weights()
        for running in self.live:
            running.mark(self.version)

    def join(self, newcomers: Sequence[Running]) -> list[Finished]:
        """Prefills the prompts of new requests and draws the first token of each; returns the requests finished by
        it.
        """
        assert 0 < len(newcomers) <= self.free
        done = self.caught_up()
        # Ties are sorted by the prompt itself, so that the order in a set, different in each process, has no effect.
        prompts = sorted({r.request.prompt for r in newcomers}, key=lambda prompt: (-len(prompt), prompt))
        for chunk in self._chunks(prompts):
            index = {prompt: i for i, prompt in enumerate(chunk)}
            joining = [r for r in newcomers if r.request.prompt in index]
            sources = [index[r.request.prompt] for r in joining]
            logits, prefilled = self._network.prefill(chunk)
            self._make_room(max(map(len, chunk)))
            rows, prompts_of_rows = self._rows.join(
                joining, sources, [self._cache.end - len(prompt) for prompt in chunk]
            )
            self._cache.place(rows, prefilled, prompts_of_rows)
            draw = self._responses.drawing(joining)
            drawn = Drawn(*draw(logits, to_device(sources, logits.device)), draw.processed)
            for running in joining:
                running.mark(self.version)
            self._draw = None
            tokens, logprobs, processed = drawn.read()
            if broken := {sources[index_of_nan] for index_of_nan in _nan_indices(logprobs)}:
                self._cache.clear([row for row, prompt in zip(rows, prompts_of_rows, strict=True) if prompt in broken])
            ended = self._responses.take(joining, tokens, logprobs, processed)
            self._settle(finished.running for finished in ended)
            done += ended
        return done

    def step(self) -> list[Finished]:
        """Draws a token for every running request; returns the requests finished by it."""
        drawn = self._step_ahead or self._begin()
        self._step_ahead = self._begin() if self._may_run_ahead() else None
        done = self._take(self._rows.requests, drawn)
        if done and self._step_ahead is not None:
            done += self._read(self._step_ahead, without=done)
        if done or self._rows.shared:
            self._settle(finished.running for finished in done)
        return done

    def _begin(self) -> Drawn:
        """Starts computing and drawing the next token of each row on the device, without waiting for the tokens."""
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
        drawn, logprobs = self._draw(logits, self._row_of)
        if not self._rows.shared:
            ids[:, 0] = drawn
            positions += 1
        return Drawn(drawn, logprobs, self._draw.processed)

    def _may_run_ahead(self) -> bool:
        """True if the next step is independent of the tokens under way, unless one ends a response."""
        # On a shared row the tokens decide which requests part, and a full cache must be moved first.
        if not self._runs_ahead or self._rows.shared or self._cache.full:
            return False
        return all(len(running.tokens) + 1 < running.limit for running in self.live)

    def _read(self, drawn: Drawn, *, without: Sequence[Finished] = ()) -> list[Finished]:
        """Records the tokens of a step begun ahead, except for requests already finished (`without`)."""
        self._step_ahead = None
        finished_ids = {id(finished.running) for finished in without}
        requests = [None if id(running) in finished_ids else running for running in self._rows.requests]
        return self._take(requests, drawn)

    def _take(self, requests: Sequence[Running | None], drawn: Drawn) -> list[Finished]:
        """Records the tokens of a step, one for each of `requests`; returns the requests finished by them. Raises
        RolloutError for NaN.
        """
        tokens, logprobs, processed = drawn.read()
        if broken := _nan_indices(logprobs):
            # Also rows without requests: their keys are NaN, and a hidden weight of 0 times NaN is still NaN.
            self._cache.clear(self._rows.of[broken])
        return self._responses.take(requests, tokens, logprobs, processed)

    def drop(self, leaving: Iterable[Running]) -> None:
        """Removes cancelled requests, freeing their slots, between two steps."""
        assert self._step_ahead is None, "caught_up() before drop()"
        self._settle(leaving)

    def _chunks(self, prompts: list[tuple[int, ...]]) -> Iterator[list[tuple[int, ...]]]:
        """Yields groups of prompts of similar length to prefill together, the longest first."""
        chunk: list[tuple[int, ...]] = []
        for prompt in prompts:
            if chunk:
                longest = len(chunk[0])
                # Half of a row may be padding, plus 16 tokens: another forward costs more than the padding.
                full = (len(chunk) + 1) * longest > PREFILL_TOKENS or longest > 2 * len(prompt) + 16
                if full or self._deterministic:
                    yield chunk
                    chunk = []
            chunk.append(prompt)
        yield chunk

    def _width(self) -> int:
        """Returns the number of columns before `end` visible to any row."""
        if self._deterministic:
            # One width at every step: sums over more columns are grouped differently, and round differently.
            return self._max_len - 1
        return self._cache.end - int(self._rows.starts.min())

    def _make_room(self, ahead: int) -> None:
        """Makes room for a prompt of `ahead` columns before `end`, and one column behind for the next token."""
        rows = self._rows
        if self._deterministic:
            width = ahead = self._max_len - 1
        else:
            width = self._width() if rows.live else 0
        until = None
        if self._fixed is not None and not self._arranged:  # otherwise a step begun ahead would lose its tokens
            until = self._fixed.columns_until(max(width, ahead))
        moved = self._cache.reserve(len(rows.starts), width, ahead, until=until)
        if moved:
            rows.starts = rows.starts + moved
            self._arranged = False

    def _settle(self, leaving: Iterable[Running]) -> None:
        """Gives each different sequence a separate row, after requests left or drew different tokens."""
        leaving_ids = set(map(id, leaving))
        rows = self._rows
        staying = np.array(
            [index for index, r in enumerate(rows.requests) if r is not None and id(r) not in leaving_ids], int
        )
        sources, targets, order = rows.settle(staying)
        if len(sources):
            self._cache.move(sources, targets, self._width())
        if self._draw is not None:
            self._draw = self._draw.of(order) if len(order) and not self._deterministic else None
        self._arranged = False

    def _arrange(self) -> None:
        """Prepares the tensors of the next steps after a change of the batch."""
        rows = self._rows
        end = self._cache.end
        device = self._ids.device
        if self._draw is None:
            self._draw = self._responses.drawing(rows.requests)
        if self._deterministic:
            rows.starts[[r is None for r in rows.requests]] = end
        self._row_of = to_device(rows.of, device) if rows.shared else None
        count = len(rows.starts)
        if self._fixed is not None:
            self._fixed.arrange(rows.starts)
        else:
            self._cache.hide(rows.starts)
        self._ids[:count, 0] = to_device(rows.tokens(), device)
        self._positions[:count, 0] = to_device(end - rows.starts, device)
        self._arranged = True


def _nan_indices(logprobs: list[float]) -> list[int]:
    """Returns the indices of log-probabilities that are NaN."""
    # NaN survives a sum, and summing a list is faster than checking each number.
    if not math.isnan(sum(logprobs)):
        return []
    return [index for index, logprob in enumerate(logprobs) if math.isnan(logprob)]
