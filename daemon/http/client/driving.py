"""`driven`: coroutines over a `BlockingTransport` as plain calls.

Such a coroutine never waits for an event loop and ends at once: a call needs neither loop nor thread, and works inside
a running loop too.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
"""Parameters of the method."""
T = TypeVar("T")
"""Type of the outcome or element."""
H = TypeVar("H")
"""Class of a blocking handle."""


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
                element = driven(_next_element(stream))
            except StopAsyncIteration:
                return
            yield element
    finally:
        driven(_close(stream))


async def _next_element(stream: AsyncGenerator[T, None]) -> T:
    """Returns the next element of a generator, as a coroutine to be driven."""
    return await stream.__anext__()


async def _close(stream: AsyncGenerator[Any, None]) -> None:
    """Closes a generator, as a coroutine to be driven."""
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
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]], handle_of: Callable[[T], H]
) -> Callable[Concatenate[Any, P], H]:
    """Returns an asynchronous method as a method of the blocking class, its outcome converted by `handle_of`."""

    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> H:
        return handle_of(driven(method(self._twin, *args, **kwargs)))

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
