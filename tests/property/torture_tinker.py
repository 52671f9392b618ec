"""A service that fails: requests refused, answers lost, halved, late, repeated, of others; trainers, explorers killed.

Whatever strikes, the weights at the end are made of every step once, in order, bit for bit those of a run that nothing
struck; each checkpoint that is kept names a state made of its own steps; each response is drawn by the weights that it
was asked of, and is the one that is drawn where nothing strikes; and no error shows the key. Run it for long:

    python -P tests/property/torture_tinker.py 10000
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final
from uuid import UUID

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from synthetic.models.tinker_rehearsal import KEY, Rehearsal, RehearsalService, Unknown

from rftd.ops.errors import DataError, RftdError
from rftd.storage.files.service_state import ServiceState
from rftd.streams.spec.spec import ExperimentSpec, ModelSpec, StageSpec
from rftd.workers.engines.contract.trainer import TrainerBench, make_batch
from rftd.workers.engines.tinker.rollout.engine import TinkerRolloutEngine
from rftd.workers.engines.tinker.trainer.arguments import TinkerTrainerArgs
from rftd.workers.engines.tinker.trainer.engine import TinkerTrainerEngine
from rftd.workers.generation.engine import Generation, GenerationRequest, Sampling
from rftd.workers.models.tiny_model import make_tiny_model
from rftd.workers.weights.channel import WeightsRef
from rftd.workers.weights.service import SERVICE

STEPS: Final = 9
SAVED_EVERY: Final = 3
KEPT: Final = 2
RESPONSE_TOKENS: Final = 4
TRIES: Final = 200
MODEL: Final = ModelSpec(path="/nowhere", max_model_len=32, max_prompt_tokens=16, max_response_tokens=16)
ARGUMENTS: Final = TinkerTrainerArgs(base_model="org/tiny")


class Killed(BaseException):
    """The trainer's process is gone."""


class Faults:
    """Strikes requests at random, and counts how."""

    def __init__(self, seed: int, share: float = 0.15) -> None:
        self.random = Random(seed)
        self.share = share
        self.counts: Counter[str] = Counter()
        self.way: RehearsalService | None = None
        self.under_way: list[Callable[[], Any]] = []
        """Requests that nobody waits for any more, and that the service has not had yet."""

    def __call__(self, what: str, work: Callable[[], Any]) -> Any:
        while self.under_way and self.random.random() < 0.5:
            late = self.under_way.pop(self.random.randrange(len(self.under_way)))
            with suppress(Unknown):  # of what has been deleted meanwhile
                late()
        if self.random.random() >= self.share:
            return work()
        fault = self.random.choice(FAULTS)
        self.counts[fault.__name__.strip("_")] += 1
        assert self.way is not None
        return fault(self, what, work)


def _refused(faults: Faults, what: str, work: Callable[[], Any]) -> Any:
    assert faults.way is not None
    raise faults.way.access.error(faults.random.choice((429, 500, 502, 503)), f"busy; you sent {KEY}", what)


def _lost(faults: Faults, what: str, work: Callable[[], Any]) -> Any:
    work()
    assert faults.way is not None
    raise faults.way.access.error(0, f"connection of {KEY} lost", what)


def _halved(faults: Faults, what: str, work: Callable[[], Any]) -> Any:
    found = work()
    if isinstance(found, dict) and "rows" in found:
        rows = found["rows"]
        cut: list[dict[str, Any]] = [{"logprobs": rows[0]["logprobs"][:-1]}, *rows[1:]]
        return found | {"rows": faults.random.choice((rows[: len(rows) // 2], cut, [{}] * len(rows), None))}
    if isinstance(found, dict) and "tokens" in found:
        field = faults.random.choice(("tokens", "logprobs"))
        return found | {field: found[field][: len(found[field]) // 2]}
    # A name cut in two is another name; of what else comes back nothing is looked at.
    return found[: len(found) // 2] if isinstance(found, str) and found.startswith("tinker://") else found


def _late(faults: Faults, what: str, work: Callable[[], Any]) -> Any:
    # It takes longer than its client waits, and is done whenever it comes: before or after whatever is asked next.
    faults.under_way.append(work)
    if faults.random.random() < 0.5:
        return work()  # the client has asked again under the same number, and was answered
    assert faults.way is not None
    raise faults.way.access.error(0, f"no answer for {KEY} in time", what)


def _repeated(_faults: Faults, what: str, work: Callable[[], Any]) -> Any:
    # Only what has a number is repeated under it; a run that is made twice is made twice.
    if what not in ("new_run", "run_from"):
        work()
    return work()


def _of_another(faults: Faults, _what: str, work: Callable[[], Any]) -> Any:
    found = work()
    if isinstance(found, str) and found.startswith("tinker://"):
        return f"tinker://another/{found.partition('//')[2].partition('/')[2]}"
    if isinstance(found, dict) and "rows" in found:
        return found | {"rows": [*found["rows"], *found["rows"]]}
    if isinstance(found, dict) and "tokens" in found:  # of one that asked for a longer text
        return found | {field: [*found[field], *found[field]] for field in ("tokens", "logprobs")}
    return found


def _killed_before(_faults: Faults, _what: str, _work: Callable[[], Any]) -> Any:
    raise Killed


def _killed_after(_faults: Faults, _what: str, work: Callable[[], Any]) -> Any:
    work()
    raise Killed


FAULTS: Final = (_refused, _lost, _halved, _late, _repeated, _of_another, _killed_before, _killed_after)


async def _responses(way: RehearsalService, ref: WeightsRef) -> tuple[Generation, ...]:
    """Two responses of the weights, from an engine of their own."""
    engine = TinkerRolloutEngine(way, MODEL)
    try:
        await engine.load_weights(ref)
        requests = (
            GenerationRequest(
                id=UUID(int=seed), prompt=(5, 6), sampling=Sampling(max_tokens=RESPONSE_TOKENS, seed=seed)
            )
            for seed in (1, 2)
        )
        return tuple([await engine.generate(each) for each in requests])
    finally:
        await engine.close()


def _same(one: Sequence[Generation], other: Sequence[Generation]) -> bool:
    return [(each.tokens, each.logprobs, each.spans) for each in one] == [
        (each.tokens, each.logprobs, each.spans) for each in other
    ]


class History:
    """A trainer's loop in small: it trains, saves, retires, and begins again after whatever struck."""

    def __init__(self, stage: StageSpec, model: Path, folder: Path, strike: Faults | None) -> None:
        self.service = Rehearsal()
        self.way = RehearsalService(self.service)
        if strike is not None:
            strike.way = self.way
            self.way.strike = strike
        self.errors: list[str] = []
        self.saved: list[tuple[int, Path]] = []
        self.drawn: dict[int, tuple[Generation, ...]] = {}
        """The responses by the step that their weights hold last."""
        self._stage = stage
        self._model = model
        self._folder = folder
        self._attempts = 0
        self._engine = self._new_engine()

    def run(self) -> None:
        """Runs until every step was taken and the last one is saved."""
        done = -1
        while done < STEPS:
            try:
                done = self._take_up()
                while done < STEPS:
                    done += 1
                    self._engine.train(make_batch(done, repeat=STEPS + 1))
                    self._draw(done, self._engine.snapshot().name())
                    if done % SAVED_EVERY == 0:
                        self._save(done)
            except (RftdError, Killed) as error:
                self.errors.append(str(error))
                done = -1

    def made_of(self) -> tuple[str, ...]:
        """The steps that the newest checkpoint's weights hold."""
        return self.service.saved[ServiceState.read(self.saved[-1][1]).path][0].made_of

    def table(self) -> Any:
        """The newest checkpoint's weights."""
        return self.service.saved[ServiceState.read(self.saved[-1][1]).path][0].table

    def _draw(self, step: int, path: str) -> None:
        """An explorer draws of the weights; what fails is drawn again, and what was drawn before is drawn alike."""
        ref = WeightsRef(version=step, generation=0, path=path, manifest="m", checksum=f"{step}", method=SERVICE)
        for _ in range(TRIES):
            try:
                drawn = asyncio.run(_responses(self.way, ref))
            except (RftdError, Killed) as error:
                self.errors.append(str(error))
                continue
            before = self.drawn.setdefault(step, drawn)
            assert _same(drawn, before), f"step {step}: the responses are of other weights"
            return
        raise AssertionError("no response in so many tries")

    def _take_up(self) -> int:
        self._engine.close()
        self._engine = self._new_engine()
        for step, folder in reversed(self.saved):
            try:
                self._engine.load(folder, self._stage)
            except DataError:
                continue
            return step
        self._engine.begin_stage(self._stage)
        return 0

    def _save(self, step: int) -> None:
        self._attempts += 1
        folder = self._folder / f"{step}-{self._attempts}"
        self._engine.save(folder, hf=False)
        self.saved.append((step, folder))
        for old in self.saved[:-KEPT]:
            self.saved.remove(old)
            self._engine.forget(ServiceState.read(old[1]))

    def _new_engine(self) -> TinkerTrainerEngine:
        engine = TinkerTrainerEngine(ARGUMENTS, lambda: self.way)
        experiment = ExperimentSpec(project="p", name="n", job_dir="/nowhere", stages=(self._stage,), config={})
        engine.open(experiment, str(self._model))
        return engine


def struck(count: int, folder: Path, seed: int = 0) -> Counter[str]:
    """At least so many faults over histories one after the other; AssertionError if one of them shows."""
    model = make_tiny_model(folder / "model", seed=5, hidden_size=32, heads=2)
    bench = TrainerBench("tinker", folder / "bench", model=model, kl_coef=0.0)
    stages = [bench.stage("rft"), bench.stage("sft")]
    whole = [History(stage, model, folder / f"whole-{number}", None) for number, stage in enumerate(stages)]
    for each in whole:
        each.run()
        assert len(each.made_of()) == STEPS
    total: Counter[str] = Counter()
    while sum(total.values()) < count:
        number = seed % len(stages)
        faults = Faults(seed)
        history = History(stages[number], model, folder / f"{seed}", faults)
        history.run()
        assert history.made_of() == whole[number].made_of(), f"seed {seed}: a step was lost or taken twice"
        np.testing.assert_array_equal(history.table(), whole[number].table(), err_msg=f"seed {seed}")
        for step, kept in history.saved:
            held = history.service.saved.get(ServiceState.read(kept).path)
            assert held is not None, f"seed {seed}: a checkpoint that is kept was forgotten"
            assert held[0].made_of == whole[number].made_of()[:step], f"seed {seed}: step {step}"
        assert not any(KEY in each for each in history.errors), f"seed {seed}: the key is shown"
        for step, drawn in history.drawn.items():
            assert _same(drawn, whole[number].drawn[step]), f"seed {seed}: responses of step {step} are of others"
        assert len(history.drawn) == STEPS, f"seed {seed}"
        total += faults.counts
        seed += 1
    return total


if __name__ == "__main__":
    with TemporaryDirectory() as temporary:
        counted = struck(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000, Path(temporary))
    told = f"{sum(counted.values()):,} faults: {dict(sorted(counted.items()))}"
    print(f"{told}; no step lost or taken twice, no response of other weights, no key shown")
