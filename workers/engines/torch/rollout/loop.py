"""The decode thread: takes requests in order, swaps weights between two steps, hands back responses.

Everything that touches the model happens on this thread; the asyncio side only puts messages into its inbox.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from rftd.ops.errors import RolloutError, WorkError
from rftd.workers.engines.torch.rollout.batch import Batch
from rftd.workers.engines.torch.rollout.network import Network
from rftd.workers.engines.torch.rollout.running import Finished, Running
from rftd.workers.engines.torch.rollout.uncached import UncachedRequests
from rftd.workers.weights.parked_tensors import Rest

PATIENCE_STEPS = 4
"""Maximum steps for which a request waits for others to be prefilled with: a prefill costs about as much as a step."""


@dataclass(frozen=True, slots=True)
class Swap:
    """New weights, verified, for use from the next step on."""

    tensors: Mapping[str, torch.Tensor]
    """New weights by name, as returned by `Network.verified`."""
    version: tuple[int, int]
    """Version and generation of the new weights."""
    done: Callable[[RolloutError | None], None]
    """Called on the decode thread with the error of the swap, or None."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A request to release the device's memory (`rests`), or to take it back."""

    rests: bool
    """True to release the memory; False to occupy it again."""
    done: Callable[[WorkError | None], None]
    """Called on the decode thread with the error of the change, or None."""


@dataclass(slots=True)
class RequestInbox:
    """Messages of the asyncio side, guarded by the loop's condition."""

    requests: list[Running] = field(default_factory=list)
    """New requests."""
    cancelled: list[Running] = field(default_factory=list)
    """Requests to be cancelled."""
    swaps: list[Swap] = field(default_factory=list)
    """New weights to be swapped in."""
    turns: list[Turn] = field(default_factory=list)
    """Changes of the device's memory."""
    stop: bool = False
    """True once the thread is to end."""

    def __bool__(self) -> bool:
        return bool(self.requests or self.cancelled or self.swaps or self.turns or self.stop)


class DecodeLoop:
    """Runs a batch on a separate thread until stopped or failed; the asyncio side sends it messages."""

    def __init__(
        self,
        network: Network,
        batch: Batch | UncachedRequests,
        *,
        threads: int,
        slots: int,
        deliver: Callable[[Sequence[Finished]], None],
        failed: Callable[[RolloutError], None],
    ) -> None:
        """Prepares the decode thread; `start` starts it. `deliver` receives finished requests, `failed` the error that
        ended the loop; both are called on the decode thread.
        """
        self._network = network
        self._batch = batch
        self._threads = threads
        self._company = max(1, slots // 4)
        self._deliver = deliver
        self._failed = failed
        self._condition = threading.Condition()
        self._inbox = RequestInbox()
        self._waiting: deque[Running] = deque()
        self._waited_steps = 0
        self._thread = threading.Thread(target=self._run, name="rftd-decode", daemon=True)
        self.version = (-1, -1)
        self.tokens_total = 0
        self.running = 0
        self.rest = Rest(network.device, network.kept)
        self.stepped: Callable[[], None] | None = None
        """Called on the decode thread after each step, while a response is watched."""

    def start(self) -> None:
        """Starts the thread; requests wait until the first weights."""
        self._thread.start()

    def submit(self, requests: Sequence[Running]) -> None:
        """Appends requests to the queue and wakes the decode thread."""
        with self._condition:
            self._inbox.requests += requests
            self._condition.notify()

    def cancel(self, request: Running) -> None:
        """Frees the request's slot before the next step; nothing is delivered unless the request had finished."""
        with self._condition:
            self._inbox.cancelled.append(request)
            self._condition.notify()

    def swap(self, swap: Swap) -> None:
        """Queues new weights, in use from the next decode step on."""
        with self._condition:
            self._inbox.swaps.append(swap)
            self._condition.notify()

    def turn(self, turn: Turn) -> None:
        """Queues a request to free the device's memory, or to occupy it again, carried out between two steps while no
        request runs.
        """
        with self._condition:
            self._inbox.turns.append(turn)
            self._condition.notify()

    def stop(self) -> None:
        """Ends the thread after its current step. Blocks until then."""
        with self._condition:
            self._inbox.stop = True
            self._condition.notify()
        # The thread may have failed, or never been started.
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        """Runs turns until stopped; an error ends the thread and is passed to `failed`."""
        try:
            torch.set_num_threads(self._threads)
            with torch.inference_mode():
                while self._turn():
                    pass
        except RolloutError as error:
            self._failed(error)
        except Exception as error:  # every error of a model must reach the waiters, or they wait for ever
            self._failed(RolloutError(f"the torch engine failed: {type(error).__name__}: {error}"))

    def _turn(self) -> bool:
        """Handles messages, then admission, then one step. Returns False when stopped."""
        inbox = self._receive()
        # A step begun ahead was drawn from the old weights, for the old rows: its tokens are taken first.
        done = self._batch.caught_up() if inbox.swaps or inbox.cancelled else []
        for swap in inbox.swaps:
            self._swap(swap)
        self._waiting += inbox.requests
        if inbox.cancelled:
            self._drop(inbox.cancelled)
        for turn in inbox.turns:
            self._change(turn)
        if inbox.stop:
            return False
        done += self._admit()
        if self._batch.live:
            self._waited_steps += 1
            done += self._batch.step()
        self.running = len(self._batch.live)
        self.tokens_total = self._batch.tokens_total
        # Read once: the asyncio side may remove the callback at any time.
        stepped = self.stepped
        if stepped is not None:
            stepped()
        if done:
            self._deliver(done)
        return True

    def _receive(self) -> RequestInbox:
        """Waits for messages or for work, and returns all messages received."""
        with self._condition:
            # A loop, because a condition may wake up without a message.
            while not self._inbox and not self._can_work():
                self._condition.wait()
            inbox = self._inbox
            self._inbox = RequestInbox()
            return inbox

    def _can_work(self) -> bool:
        """True if a request is running, or waits while there are weights."""
        return bool(self._batch.live or (self._waiting and self.version != (-1, -1)))

    def _swap(self, swap: Swap) -> None:
        """Copies new weights into the network, and notes them in all running requests."""
        try:
            with self.rest.interrupted():
                self._network.assign(swap.tensors)
        except RolloutError as error:
            swap.done(error)
            return
        self.version = swap.version
        self._batch.swapped(swap.version)
        swap.done(None)

    def _change(self, turn: Turn) -> None:
        """Releases the device's memory, unless a request is running, or occupies it again; reports to `Turn.done`."""
        try:
            if turn.rests and not self._batch.live:
                self._batch.forget()
                self.rest.begin()
            if not turn.rests:
                self.rest.end()
        except WorkError as error:
            turn.done(error)
            return
        turn.done(None)

    def _drop(self, cancelled: list[Running]) -> None:
        """Removes cancelled requests from the queue and the batch."""
        # A request is in the queue or in the batch, known only to this thread.
        cancelled_ids = set(map(id, cancelled))
        self._waiting = deque(running for running in self._waiting if id(running) not in cancelled_ids)
        self._batch.drop(cancelled)

    def _admit(self) -> list[Finished]:
        """Lets waiting requests join the batch, if enough wait to be prefilled together or have waited long enough;
        returns requests finished by their first token.
        """
        count = min(self._batch.free, len(self._waiting))
        if not count or self.version == (-1, -1):
            self._waited_steps = 0
            return []
        if self._batch.live and count < self._company and self._waited_steps < PATIENCE_STEPS:
            return []
        self._waited_steps = 0
        newcomers = [self._waiting.popleft() for _ in range(count)]
        return self._batch.join(newcomers)
