"""`driven`: coroutines over a `BlockingTransport` as plain calls.

Such a coroutine never waits for an event loop and ends at once: a call needs neither loop nor thread, and works inside
a running loop too.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    from rftd.daemon.http.client.run import AsyncRunHandle, RunHandle

P = ParamSpec("P")
T = TypeVar("T")


def driven(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine over a `BlockingTransport` to its end, and returns its outcome."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        outcome: T = end.value
        return outcome
    coroutine.close()
    raise AssertionError("a blocking coroutine waited for an event loop")


def each_of(stream: AsyncGenerator[T, None]) -> Iterator[T]:
    """Yields the elements of an asynchronous generator over a `BlockingTransport`."""
    try:
        while True:
            try:
                element = driven(_next(stream))
            except StopAsyncIteration:
                return
            yield element
    finally:
        driven(_closed(stream))


async def _next(stream: AsyncGenerator[T, None]) -> T:
    return await stream.__anext__()


async def _closed(stream: AsyncGenerator[Any, None]) -> None:
    await stream.aclose()


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """Returns an asynchronous class's method as a method of the blocking class; `_twin` is the asynchronous object."""

    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return driven(method(self._twin, *args, **kwargs))

    update_wrapper(call, method)
    return call


def handled(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, AsyncRunHandle]],
) -> Callable[Concatenate[Any, P], RunHandle]:
    """Returns an asynchronous method that gives a run as a method of the blocking class, giving a `RunHandle`."""

    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        from rftd.daemon.http.client.run import AsyncRunHandle, RunHandle

        outcome = driven(method(self._twin, *args, **kwargs))
        return RunHandle(outcome) if isinstance(outcome, AsyncRunHandle) else outcome

    update_wrapper(call, method)
    return call


def yielding(
    method: Callable[Concatenate[Any, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """Returns an asynchronous generator as a generator of the blocking class."""

    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return each_of(method(self._twin, *args, **kwargs))

    update_wrapper(call, method)
    return call
