"""`AnswerStream`: an answer on its way to one client, event by event, while it is drawn."""

from __future__ import annotations

import asyncio

from rftd.workers.rollout.endpoint.api_call import Answered, AnswerEvents
from rftd.workers.rollout.endpoint.http_call import HttpCall
from rftd.workers.rollout.endpoint.rollout_calls import ModelCall


class AnswerStream:
    """Tells a client what is drawn for a call, from its first token on, however late the client came."""

    def __init__(self, call: ModelCall, http: HttpCall) -> None:
        self._call = call
        self._http = http
        self._events: AnswerEvents | None = None
        self._sent = [0] * call.asked.question.choices
        """The number of tokens of each choice that went into events."""

    async def follow(self, hang_up: asyncio.Task[None]) -> None:
        """Returns when the answer is complete or has failed, or the client is gone."""
        news = asyncio.Event()
        news.set()  # what was drawn before this client came
        task = self._call.task
        assert task is not None
        self._call.listeners.add(news.set)
        for ending in (hang_up, task):
            ending.add_done_callback(lambda _: news.set())
        try:
            while not task.done() and not hang_up.done():
                await news.wait()
                news.clear()
                # What is complete is told by `finish`, after it was recorded.
                if not task.done() and not hang_up.done():
                    await self._send_drawn()
        finally:
            self._call.listeners.discard(news.set)

    def finish(self, answered: Answered) -> list[bytes]:
        """The events that are still missing."""
        events = self._events or self._call.asked.events(answered)
        return list(events.rest(answered))

    async def _send_drawn(self) -> None:
        begun = self._call.begun
        if begun is None:
            return
        if self._events is None:
            self._events = self._call.asked.events(begun)
        for index, (tokens, logprobs) in enumerate(self._call.drawn):
            sent = self._sent[index]
            if len(tokens) > sent:
                self._sent[index] = len(tokens)
                await self._http.push(self._events.drawn(index, tokens[sent:], logprobs[sent:]))
