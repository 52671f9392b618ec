"""`TorchRolloutEngine`: the asyncio front of the decode thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import torch

from rftd.ops.errors import RolloutError, WeightsElsewhereError, WorkError
from rftd.workers.engines.torch.rollout.batch import Batch
from rftd.workers.engines.torch.rollout.cuda_graphs import recorder_for
from rftd.workers.engines.torch.rollout.loop import DecodeLoop, Swap, Turn
from rftd.workers.engines.torch.rollout.memory import check_generation
from rftd.workers.engines.torch.rollout.network import CPU, Network, dtype_of
from rftd.workers.engines.torch.rollout.noise import key_of
from rftd.workers.engines.torch.rollout.running import Finished, Running, Several, Single, Waiter
from rftd.workers.engines.torch.rollout.trial import try_model
from rftd.workers.engines.torch.rollout.uncached import UncachedRequests, batch_of
from rftd.workers.generation.engine import Answers, EngineStats, Generation, GenerationRequest
from rftd.workers.weights.channel import WeightsRef
from rftd.workers.weights.opened_tensors import opened_tensors
from rftd.workers.weights.registry import Channels

QUEUE_REQUESTS = 4096
"""Number of unfinished requests above which `generate` waits before queueing."""


class TorchRolloutEngine:
    """The `RolloutEngine` for any transformers causal language model, on this machine."""

    def __init__(
        self, network: Network, batch: Batch | UncachedRequests, *, slots: int, max_model_len: int, threads: int
    ) -> None:
        """Makes the engine; callers use `open`."""
        self._asyncio = asyncio.get_running_loop()
        self._network = network
        self._max_model_len = max_model_len
        self._loop = DecodeLoop(
            network,
            batch,
            threads=threads,
            slots=slots,
            deliver=lambda done: self._call(partial(self._deliver, done)),
            failed=lambda error: self._call(partial(self._fail, error)),
        )
        self._room = asyncio.Semaphore(QUEUE_REQUESTS)
        self._waiters: dict[Running, Waiter] = {}
        self._reported_tokens: dict[Running, int] = {}
        """Number of tokens already passed to the watch of each request."""
        self._report_due = False
        self._changing = asyncio.Lock()
        """Held while new weights are loaded, or moved between device and host: one change at a time."""
        self._pending: set[asyncio.Future[None]] = set()
        self._unsent: list[Running] = []
        self._requests_total = 0
        self._channels = Channels()
        self._error: RolloutError | None = None
        self.transfer_s = 0.0
        """See `TransferTimed`."""

    @classmethod
    async def open(
        cls,
        model_path: str,
        *,
        slots: int,
        max_model_len: int,
        dtype: str = "float32",
        device: torch.device = CPU,
        threads: int,
        deterministic: bool = False,
        cuda_graphs: bool = True,
        trust_remote_code: bool = False,
        biased: Collection[int] = (),
    ) -> TorchRolloutEngine:
        """Opens an engine for the model in the folder `model_path`; the first `load_weights` makes it usable.

        `slots` requests run at once, each of at most `max_model_len` tokens with its prompt; `biased` are the token ids
        with a bias in some taskset. On a GPU, `cuda_graphs` records and repeats decode steps, if the model allows.
        Raises DataError for a folder without a model, RolloutError for a model that this engine cannot run or that
        lacks such tokens, DeviceMemoryError if the device has too little memory.
        """
        assert slots > 0 and max_model_len > 1 and threads > 0
        # Checked before loading: running out of memory halfway has a worse message, and may take the trainer along.
        await asyncio.to_thread(
            check_generation,
            Path(model_path),
            slots=slots,
            max_len=max_model_len,
            dtype=dtype_of(dtype),
            device=device,
        )
        network = await asyncio.to_thread(
            Network.load,
            model_path,
            max_len=max_model_len,
            dtype=dtype,
            device=device,
            trust_remote_code=trust_remote_code,
        )
        for token in biased:
            network.check_token(token)
        way = await asyncio.to_thread(try_model, network)
        recorder = await asyncio.to_thread(recorder_for, network, way, enabled=cuda_graphs, deterministic=deterministic)
        batch = batch_of(
            network, way, slots=slots, max_len=max_model_len, deterministic=deterministic, recorder=recorder
        )
        engine = cls(network, batch, slots=slots, max_model_len=max_model_len, threads=threads)
        engine._loop.start()
        return engine

    @property
    def version(self) -> tuple[int, int]:
        """(version, generation) of the weights in use; (-1, -1) before the first."""
        return self._loop.version

    async def generate(self, request: GenerationRequest) -> Generation:
        """Returns the response to one request. A cancelled request frees its slot before the next token."""
        running = self._checked_request(request)
        async with self._room:
            self._check_running()
            waiter = Single()
            self._submit([running], waiter)
            try:
                return await waiter.response
            finally:
                self._leave([running])

    @asynccontextmanager
    async def generate_each(self, requests: Sequence[GenerationRequest]) -> AsyncIterator[Answers]:
        """Yields the responses to several requests as they finish."""
        waiter = Several()
        runnings: list[Running] = []
        for number, request in enumerate(requests):
            try:
                running = self._checked_request(request)
            except RolloutError as error:
                waiter.refuse(number, error)
            else:
                waiter.expect(number, running)
                runnings.append(running)
        self._submit(runnings, waiter)
        try:
            yield waiter
        finally:
            self._leave(runnings)

    def _submit(self, runnings: Sequence[Running], waiter: Waiter) -> None:
        """Queues requests; all requests of one turn of the event loop go to the decode thread together."""
        for running in runnings:
            self._waiters[running] = waiter
            if running.request.watch is not None:
                self._reported_tokens[running] = 0
                self._loop.stepped = self._schedule_report
        self._requests_total += len(runnings)
        # One wake-up of the decode thread for a whole turn: prefilling many requests costs hardly more than prefilling
        # few.
        if not self._unsent:
            self._asyncio.call_soon(self._send)
        self._unsent += runnings

    def _leave(self, runnings: Sequence[Running]) -> None:
        """Stops waiting for these requests: unfinished ones are cancelled."""
        for running in runnings:
            if self._waiters.pop(running, None) is not None:
                self._cancel(running)
            if (
                self._reported_tokens
                and self._reported_tokens.pop(running, None) is not None
                and not self._reported_tokens
            ):
                self._loop.stepped = None

    async def load_weights(self, weights: WeightsRef) -> str:
        """Reads and verifies on a separate thread, then swaps between two decode steps, at the cost of one copy."""
        async with self._changing:
            return await self._load_exclusively(weights)

    async def _load_exclusively(self, weights: WeightsRef) -> str:
        """Opens, verifies and swaps in weights, while no other change is under way; returns their checksum."""
        self._check_running()
        began_s = self._asyncio.time()
        tensors, release = await asyncio.to_thread(self._open_weights, weights)
        self.transfer_s = self._asyncio.time() - began_s
        # The engine may have failed meanwhile, in which case the weights would never be released.
        if self._error is not None:
            release()
            self._check_running()
        swapped: asyncio.Future[None] = self._asyncio.create_future()
        self._pending.add(swapped)
        version = (weights.version, weights.generation)

        def done(error: RolloutError | None) -> None:
            release()
            self._call(partial(_settle, swapped, error))

        self._loop.swap(Swap(tensors, version, done))
        try:
            # Shielded: the decode thread swaps in any case, and settles a future that must still exist.
            await asyncio.shield(swapped)
        finally:
            self._pending.discard(swapped)
        return weights.checksum

    async def rest(self) -> None:
        """Releases the device's memory until `wake`, while nothing is generated. No effect on a CPU."""
        await self._turn_exclusively(rests=True)

    async def wake(self) -> None:
        """Occupies the device's memory again, with equal content bit for bit. Raises DeviceMemoryError if other
        processes use it.
        """
        await self._turn_exclusively(rests=False)

    async def _turn_exclusively(self, *, rests: bool) -> None:
        """Releases (`rests`) or occupies the device's memory, while no other change is under way."""
        async with self._changing:
            await self._turn(rests=rests)

    async def _turn(self, *, rests: bool) -> None:
        """Asks the decode thread to release or occupy the device's memory, and waits for the end. No effect on a
        CPU.
        """
        self._check_running()
        if not self._loop.rest.possible:
            return
        turned: asyncio.Future[None] = self._asyncio.create_future()
        self._pending.add(turned)
        self._loop.turn(Turn(rests, lambda error: self._call(partial(_settle, turned, error))))
        try:
            await asyncio.shield(turned)
        finally:
            self._pending.discard(turned)

    def stats(self) -> EngineStats:
        """Returns the counters, for heartbeats and metrics."""
        running = self._loop.running
        return EngineStats(
            tokens_total=self._loop.tokens_total,
            requests_total=self._requests_total,
            running=running,
            waiting=max(0, len(self._waiters) - running),
        )

    async def close(self) -> None:
        """Stops the engine; running requests raise RolloutError. Idempotent."""
        if self._error is None:
            self._fail(RolloutError("the engine was closed"))
        await asyncio.to_thread(self._loop.stop)

    def _open_weights(self, weights: WeightsRef) -> tuple[Mapping[str, torch.Tensor], Callable[[], None]]:
        """Opens and verifies the announced weights in the channel's memory; the second value releases them after the
        copy.
        """
        with contextlib.ExitStack() as stack:
            try:
                channel = self._channels.of(weights.method)
                tensors = stack.enter_context(opened_tensors(channel, weights, self._network.device))
            except WeightsElsewhereError:
                raise
            except WorkError as error:
                raise RolloutError(error.what, where=error.where) from error
            # At rest no decoding would be delayed, and the device's memory belongs to others.
            verified = self._network.verified(tensors, ahead=not self._loop.rest.begun)
            return verified, stack.pop_all().close

    def _checked_request(self, request: GenerationRequest) -> Running:
        """Returns a request in the engine's form. Raises RolloutError for one that can never run."""
        self._check_running()
        prompt = request.prompt
        sampling = request.sampling
        room = self._max_model_len - len(prompt)
        if not prompt:
            raise RolloutError(f"request {request.id} has an empty prompt")
        if room < 1:
            raise RolloutError(
                f"request {request.id}: a prompt of {len(prompt)} tokens leaves no room in {self._max_model_len}",
                fix="raise model.max_model_len, or lower model.max_prompt_tokens",
            )
        if not 0 <= min(prompt) <= max(prompt) < self._network.vocabulary:
            raise RolloutError(f"request {request.id} has a token outside of 0..{self._network.vocabulary - 1}")
        if sampling.max_tokens < 1 or sampling.temperature < 0 or not 0 < sampling.top_p <= 1 or "" in sampling.stop:
            raise RolloutError(f"request {request.id} has invalid sampling settings: {sampling}")
        for token, _ in sampling.logit_bias:
            self._network.check_token(token)
        return Running(request, min(sampling.max_tokens, room), key_of(sampling.seed))

    def _check_running(self) -> None:
        """Raises RolloutError if the engine has failed or was closed."""
        if self._error is not None:
            raise RolloutError(self._error.what) from self._error

    def _send(self) -> None:
        """Passes the requests of this turn of the event loop to the decode thread."""
        unsent = self._unsent
        self._unsent = []
        self._loop.submit(unsent)

    def _cancel(self, running: Running) -> None:
        """Cancels a request, before or after its submission to the decode thread."""
        if running in self._unsent:
            self._unsent.remove(running)
        else:
            self._loop.cancel(running)

    def _call(self, function: Callable[[], None]) -> None:
        """Calls the function on the event loop, from the decode thread; does nothing once the loop is closed."""
        with contextlib.suppress(RuntimeError):
            self._asyncio.call_soon_threadsafe(function)

    def _schedule_report(self) -> None:
        """Schedules a report after a step, on the decode thread; several steps may be reported together."""
        if not self._report_due:
            self._report_due = True
            self._call(self._report)

    def _report(self) -> None:
        """Reports newly drawn tokens to the `watch` of each request, on the event loop."""
        # Cleared first: a token drawn from here on is in the next report.
        self._report_due = False
        for running, reported in list(self._reported_tokens.items()):
            # The decode thread appends a token before its log-probability.
            drawn = len(running.logprobs)
            if drawn > reported and running.request.watch is not None:
                self._reported_tokens[running] = drawn
                running.request.watch(running.tokens[reported:drawn], running.logprobs[reported:drawn])

    def _deliver(self, done: Sequence[Finished]) -> None:
        """Passes finished requests to the callers waiting for them, on the event loop."""
        for finished in done:
            waiter = self._waiters.pop(finished.running, None)
            if waiter is not None:
                waiter.take(finished.running, finished.result)

    def _fail(self, error: RolloutError) -> None:
        """Marks the engine as failed, and passes the error to all waiting callers; the first error remains."""
        self._error = self._error or error
        waiters = self._waiters
        self._waiters = {}
        for running, waiter in waiters.items():
            waiter.take(running, RolloutError(error.what, fix=error.fix))
        for future in list(self._pending):
            if not future.done():
                future.set_exception(RolloutError(error.what, fix=error.fix))


def _settle(future: asyncio.Future[None], error: WorkError | None) -> None:
    """Completes a future, with an error if there is one; a future already completed stays as it is."""
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
