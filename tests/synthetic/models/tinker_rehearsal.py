"""A rehearsal of the Tinker service: a model of pairs of tokens that really learns, behind the seam that engines call.

`Rehearsal` is the service: it executes what arrives, once for each sequence number of a run, and writes down what each
run's weights are made of. `RehearsalService` is the way to it, which faults may strike.
"""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from rftd.ops.errors import RolloutError
from rftd.ops.redaction import Secret
from rftd.workers.engines.tinker.access import Access
from rftd.workers.engines.tinker.service import (
    AdamStep,
    AdapterShape,
    Loss,
    PassAnswer,
    SampleAnswer,
    ServiceSampling,
    TokenRow,
)

KEY = "tml-rehearsal-key"
END = 2
"""The token that ends a text."""
POLL_INTERVAL_S = 0.02
"""How often a wait for the service looks whether whoever waits is dead."""


@dataclass
class Run:
    """The weights of one run, and what they are made of."""

    table: NDArray[np.float64]
    mean: NDArray[np.float64]
    square: NDArray[np.float64]
    adam_steps: int = 0
    gradient: NDArray[np.float64] | None = None
    made_of: tuple[str, ...] = ()
    """The optimizer steps that these weights hold, one text each."""
    last: str = ""

    def logprobs(self) -> NDArray[np.float64]:
        shifted = self.table - self.table.max(-1, keepdims=True)
        found: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        return found


def _set() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


@dataclass
class Rehearsal:
    """The service. Everything happens at once; `log` has the requests in their order."""

    vocabulary: int = 128
    models: tuple[str, ...] = ("org/tiny",)
    runs: dict[str, Run] = field(default_factory=dict)
    saved: dict[str, tuple[Run, bool]] = field(default_factory=dict)
    """What was saved, by path: the weights, and whether the optimizer is with them."""
    done: dict[tuple[str, int], Any] = field(default_factory=dict)
    """The answers that were given, by run and sequence number."""
    log: list[str] = field(default_factory=list)
    keys: set[str] = field(default_factory=lambda: {KEY})
    there: threading.Event = field(default_factory=_set)
    asking: list[RehearsalService] = field(default_factory=list)
    """The ways to it of whoever asks, or asked."""

    def hang_up(self) -> None:
        """Ends the waits of all that asked until now, as the death of their processes does."""
        for each in self.asking:
            each.gone.set()

    @property
    def away(self) -> bool:
        """True while nothing is answered: requests wait."""
        return not self.there.is_set()

    @away.setter
    def away(self, value: bool) -> None:
        if value:
            self.there.clear()
        else:
            self.there.set()

    def new_run(self, base_model: str) -> str:
        if base_model not in self.models:
            raise Unknown(404, f"no model {base_model}")
        zeros = np.zeros((self.vocabulary, self.vocabulary))
        return self._add(Run(zeros.copy(), zeros.copy(), zeros.copy()))

    def run_from(self, path: str, *, optimizer: bool) -> str:
        if path not in self.saved or not self.saved[path][1]:
            raise Unknown(404, f"no state {path}")
        run = copy.deepcopy(self.saved[path][0])
        if not optimizer:
            run.mean[:] = run.square[:] = 0.0
            run.adam_steps = 0
        return self._add(run)

    def _add(self, run: Run) -> str:
        name = f"run{len(self.runs)}"
        self.runs[name] = run
        return name

    def execute(self, run: str, number: int, work: Callable[[Run], Any]) -> Any:
        """The answer to one request; a repeated one is answered, and not executed again."""
        if (run, number) not in self.done:
            assert number == sum(known == run for known, _ in self.done), "a request was left out"
            self.done[run, number] = work(self.runs[run])
        return self.done[run, number]

    def forward(self, run: Run, rows: Sequence[TokenRow]) -> dict[str, Any]:
        table = run.logprobs()
        found = []
        for row in rows:
            logprobs = table[row.tokens, row.targets]
            value, _ = _loss("cross_entropy", logprobs, row.columns, {})
            found.append(_told(logprobs, value))
        return {"rows": found, "metrics": {"loss:sum": 0.0}}

    def gradient(self, run: Run, rows: Sequence[TokenRow], loss: Loss, config: Mapping[str, float]) -> dict[str, Any]:
        found = []
        table = run.logprobs()
        total = 0.0
        gradient = np.zeros_like(run.table) if run.gradient is None else run.gradient
        for row in rows:
            logprobs = table[row.tokens, row.targets]
            value, slope = _loss(loss, logprobs, row.columns, config)
            found.append(_told(logprobs, value))
            total += float(value.sum())
            for token, target, each in zip(row.tokens, row.targets, slope, strict=True):
                gradient[token] -= each * np.exp(table[token])
                gradient[token, target] += each
        run.gradient = gradient
        digest = xxhash.xxh3_64()
        for row in rows:
            digest.update(row.targets.tobytes())
        run.last = digest.hexdigest()
        return {"rows": found, "metrics": {"loss:sum": total}}

    def step(self, run: Run, adam: AdamStep) -> dict[str, Any]:
        gradient = run.gradient if run.gradient is not None else np.zeros_like(run.table)
        run.gradient = None
        run.adam_steps += 1
        run.mean = adam.betas[0] * run.mean + (1 - adam.betas[0]) * gradient
        run.square = adam.betas[1] * run.square + (1 - adam.betas[1]) * gradient**2
        mean = run.mean / (1 - adam.betas[0] ** run.adam_steps)
        square = run.square / (1 - adam.betas[1] ** run.adam_steps)
        run.table = run.table - adam.rate * (mean / (np.sqrt(square) + adam.eps) + adam.weight_decay * run.table)
        run.made_of = (*run.made_of, run.last)
        return {}

    def save(self, name: str, run: str, kind: str) -> str:
        path = f"tinker://{run}/{kind}/{name}"
        assert path not in self.saved, "a name was given twice"
        # A state is weights and optimizer: a gradient that waits for its step is in none.
        self.saved[path] = replace(copy.deepcopy(self.runs[run]), gradient=None, last=""), kind == "weights"
        return path

    def sample(self, path: str, prompt: Sequence[int], draw: ServiceSampling) -> dict[str, Any]:
        if path not in self.saved:
            raise Unknown(404, f"no weights {path}")
        table = self.saved[path][0].logprobs()
        random = np.random.default_rng(draw.seed)
        tokens: list[int] = []
        logprobs: list[float] = []
        last = prompt[-1]
        while len(tokens) < draw.max_tokens and (not tokens or tokens[-1] != END):
            weights = np.exp(table[last])
            greedy = draw.temperature == 0
            token = int(table[last].argmax()) if greedy else int(random.choice(len(weights), p=weights / weights.sum()))
            tokens.append(token)
            logprobs.append(float(table[last, token]))
            last = token
        return {"tokens": tokens, "logprobs": logprobs, "stop_reason": "stop" if tokens[-1] == END else "length"}


class Unknown(Exception):
    def __init__(self, status: int, said: Any) -> None:
        super().__init__(str(said))
        self.status = status
        self.said = said


def _told(logprobs: NDArray[np.float64], losses: NDArray[np.float64]) -> dict[str, list[float]]:
    """What is said of one row."""
    said = {"logprobs": logprobs, "elementwise_loss": losses}
    return {name: values.astype(np.float32).tolist() for name, values in said.items()}


def _loss(
    loss: Loss, logprobs: NDArray[np.float64], columns: Mapping[str, Any], config: Mapping[str, float]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The loss of each token, and its slope by the token's log-probability."""
    if loss == "cross_entropy":
        weights = np.asarray(columns["weights"], np.float64)
        return -weights * logprobs, -weights
    advantages = np.asarray(columns["advantages"], np.float64)
    ratio = np.exp(logprobs - np.asarray(columns["logprobs"], np.float64))
    plain = advantages * ratio
    if loss == "importance_sampling":
        return -plain, -plain
    clipped = advantages * ratio.clip(config["clip_low_threshold"], config["clip_high_threshold"])
    return -np.minimum(plain, clipped), -np.where(plain <= clipped, plain, 0.0)


Strike = Callable[[str, Callable[[], Any]], Any]
"""A fault: is told what is asked, and the way to have it done; gives the answer, another one, or raises."""


def unharmed(_what: str, work: Callable[[], Any]) -> Any:
    return work()


class RehearsalService:
    """Implements `TinkerService` on a `Rehearsal`."""

    def __init__(self, service: Rehearsal, key: str = KEY, strike: Strike = unharmed) -> None:
        self.service = service
        self.strike = strike
        self.access = Access(Secret(key), "TINKER_API_KEY", "http://rehearsal")
        self.gone = threading.Event()
        """Set once the process that asks is dead."""
        service.asking.append(self)
        self._key = key

    def new_run(self, base_model: str, shape: AdapterShape) -> RehearsalRun:
        try:
            made = self.ask("new_run", lambda: self.service.new_run(base_model))
        except Unknown as error:
            raise self.access.unknown_model_error(base_model, str(error)) from None
        return RehearsalRun(self, made)

    def run_from(self, path: str, base_model: str, *, optimizer: bool) -> RehearsalRun:
        try:
            made = self.ask("run_from", lambda: self.service.run_from(path, optimizer=optimizer))
        except Unknown as error:
            raise self.access.forgotten_error(path, str(error)) from None
        return RehearsalRun(self, made)

    def sampler(self, path: str) -> RehearsalSampler:
        if not self.ask("sampler", lambda: path in self.service.saved):
            raise RolloutError(self.access.forgotten_error(path, "no weights").what)
        return RehearsalSampler(self, path)

    def has(self, path: str) -> bool:
        return path in self.service.saved

    def delete(self, path: str) -> None:
        self.ask("delete", lambda: self.service.saved.pop(path, None))

    def answers(self) -> bool:
        return not self.service.away

    def close(self) -> None:
        return

    def ask(self, what: str, work: Callable[[], Any]) -> Any:
        """What the service answers, if the key is good and nothing strikes."""
        if self._key not in self.service.keys:
            raise self.access.error(401, f"invalid key {self._key}", what)
        self.reach()
        self.service.log.append(what)
        return self.strike(what, work)

    def reach(self) -> None:
        """Waits until the service is there. Raises ConnectionError if whoever asks dies meanwhile."""
        while not self.service.there.wait(POLL_INTERVAL_S):
            if self.gone.is_set():
                raise ConnectionError("whoever asked is dead")


class RehearsalRun:
    """Implements `TrainingRun`: a broken one answers nothing more, as the package's client."""

    def __init__(self, service: RehearsalService, run: str) -> None:
        self.id = run
        self._service = service
        self._number = 0
        self._broken = False

    def forward(self, rows: Sequence[TokenRow]) -> PassAnswer:
        found = self._ask("forward", lambda run: self._service.service.forward(run, rows))
        return PassAnswer(rows=found["rows"], metrics=found["metrics"])

    def gradient(self, rows: Sequence[TokenRow], loss: Loss, config: Mapping[str, float]) -> PassAnswer:
        found = self._ask("gradient", lambda run: self._service.service.gradient(run, rows, loss, config))
        return PassAnswer(rows=found["rows"], metrics=found["metrics"])

    def step(self, adam: AdamStep, rows: Sequence[TokenRow] | None = None) -> Mapping[str, Any]:
        if rows is not None:
            self._ask("gradient", lambda run: self._service.service.gradient(run, rows, "cross_entropy", {}))
        found: Mapping[str, Any] = self._ask("step", lambda run: self._service.service.step(run, adam))
        return found

    def save_state(self, name: str) -> Any:
        return self._ask("save_state", lambda _: self._service.service.save(name, self.id, "weights"))

    def save_weights(self, name: str) -> Callable[[], Any]:
        found = self._ask("save_weights", lambda _: self._service.service.save(name, self.id, "sampler_weights"))
        return lambda: found

    def _ask(self, what: str, work: Callable[[Run], Any]) -> Any:
        assert not self._broken, "asked after it had failed"
        number = self._number
        self._number += 1
        try:
            return self._service.ask(what, lambda: self._service.service.execute(self.id, number, work))
        except BaseException:
            self._broken = True
            raise


class RehearsalSampler:
    """Implements `Sampler`."""

    def __init__(self, service: RehearsalService, path: str) -> None:
        self._service = service
        self._path = path

    async def sample(self, prompt: Sequence[int], draw: ServiceSampling) -> SampleAnswer:
        def sampled() -> dict[str, Any]:
            answer: dict[str, Any] = self._service.ask(
                "sample", lambda: self._service.service.sample(self._path, prompt, draw)
            )
            return answer

        # The whole of it on a thread: the service may go away at any moment, and the loop must not wait for it.
        found = await asyncio.to_thread(sampled)
        return SampleAnswer(tokens=found["tokens"], logprobs=found["logprobs"], stop_reason=found["stop_reason"])
