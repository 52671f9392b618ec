"""Rows that requests share: after every step each request finds its own sequence on its row, and no row is a double."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rftd.workers.engines.torch.rollout.rows import SharedRows
from rftd.workers.engines.torch.rollout.running import Running
from rftd.workers.generation.engine import GenerationRequest, Sampling

SAMPLING = Sampling(max_tokens=99)


class Cache:
    """The rows as lists, moved as the engine's cache is."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, ...]] = [()] * 64

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        found = [self.rows[source] for source in sources]
        for target, sequence in zip(targets, found, strict=True):
            self.rows[target] = sequence


@given(st.data())
def test_each_request_has_its_own_sequence(data: st.DataObject) -> None:
    rows, cache, serial = SharedRows(), Cache(), 0
    whole: dict[Running, tuple[int, ...]] = {}
    for _ in range(data.draw(st.integers(1, 8))):
        if len(rows.live) <= 20 and data.draw(st.booleans()):
            sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
            serial += 1
            joining = [
                Running(GenerationRequest(id=UUID(int=0), prompt=(serial, prompt), sampling=SAMPLING), 99, 0)
                for prompt, size in enumerate(sizes)
                for _ in range(size)
            ]
            sources = [running.request.prompt[1] for running in joining]
            seats, placed = rows.join(joining, sources, [10 * serial + prompt for prompt in range(len(sizes))])
            for seat, prompt in zip(seats, placed, strict=True):
                cache.rows[seat] = (serial, int(prompt))
            drawing = joining
        else:
            for row, token in enumerate(rows.tokens()):  # the step writes what each row goes on with
                cache.rows[row] += (int(token),)
            drawing = list(rows.live)
        for running in drawing:
            running.tokens.append(data.draw(st.integers(0, 2)))
            whole[running] = (*running.request.prompt, *running.tokens[:-1])
        before = list(rows.live)
        kept = [place for place in range(len(before)) if data.draw(st.integers(0, 3))]
        settled = rows.settle(np.array(kept, dtype=np.int64))
        cache.move(settled.sources.tolist(), settled.targets.tolist())
        assert rows.live == [before[place] for place in settled.kept]
        assert sorted(settled.kept.tolist()) == kept
        assert rows.of.tolist() == sorted(rows.of.tolist())
        goes_on = rows.tokens()
        for running, row in zip(rows.live, rows.of, strict=True):
            assert cache.rows[row] == whole[running]
            assert goes_on[row] == running.tokens[-1]
            assert rows.starts[row] == 10 * running.request.prompt[0] + running.request.prompt[1]
        assert len(rows.starts) == len({(whole[running], running.tokens[-1]) for running in rows.live})
        assert rows.shared == (len(rows.starts) < len(rows.live))
