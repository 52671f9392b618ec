"""The server of conversations: what strangers may ask, what they are refused, and what is kept before they are told."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest
from synthetic.models.scripted_engine import SPEC, ScriptedEngine, message_of, user

from rftd.ops import limits
from rftd.ops.clock import SystemClock
from rftd.ops.errors import ConfigError, ConflictError
from rftd.ops.ids import SystemIds
from rftd.storage.files.artifacts import ArtifactStore
from rftd.streams.events.task import TasksOffered
from rftd.streams.spec.engines import SERVE_KEY, ServingSpec
from rftd.streams.spec.spec import AlgorithmSpec, RolloutSpec, SamplingSpec, StageSpec, TasksetSpec
from rftd.workers.datasets.byte_tokenizer import ByteTokenizer
from rftd.workers.rollout.rollouts import RolloutPlaces
from rftd.workers.rollout.serving.conversations import Conversations, result_of
from rftd.workers.rollout.serving.history import History
from rftd.workers.rollout.serving.server import ConversationServer
from rftd.workers.rollout.version_gate import VersionGate

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"
Turns: TypeAlias = Callable[[Sequence[str]], dict[str, Any]]


class Served:
    """A server that runs, its client, and what it offered."""

    def __init__(
        self,
        folder: Path,
        engine: ScriptedEngine,
        *,
        address: str = "127.0.0.1",
        port: int | None = 0,
        timeout_s: float = 60.0,
    ) -> None:
        self.offered: list[TasksOffered] = []
        self.log_answers = True
        self.history = History(folder, SystemIds(SystemClock()).new)
        self.gate = VersionGate()
        self.server = ConversationServer(
            StageSpec(
                name="s",
                kind="both",
                total_steps=1,
                batch_size=1,
                train_batch_size=2,
                algorithm=AlgorithmSpec(kind="grpo", repeat_times=2),
                model=SPEC,
                taskset=TasksetSpec(name="conversations", path=str(folder), sampling=SamplingSpec(max_tokens=400)),
                rollout=RolloutSpec(max_timeout_s=timeout_s),
                serving=ServingSpec(address=address, port=port or 0),
            ),
            Conversations(
                self.history,
                stage=0,
                max_model_len=SPEC.max_model_len,
                artifacts=ArtifactStore(folder),
                offer=self._offer,
                promised=lambda: None,
            ),
            engine,
            ByteTokenizer(),
            gate=self.gate,
            places=RolloutPlaces(4),
            clock=SystemClock(),
            random_bytes=os.urandom,
        )
        self.client = httpx.AsyncClient(trust_env=False, verify=False, timeout=60.0)

    async def _offer(self, offered: TasksOffered) -> bool:
        self.offered.append(offered)
        return self.log_answers

    async def post(self, path: str, body: Any = None, **headers: str) -> httpx.Response:
        return await self.client.post(path, json=body, headers=headers)

    async def said(self, path: str, body: Any = None) -> dict[str, Any]:
        response = await self.post(path, body)
        assert response.status_code == 200, response.text
        told: dict[str, Any] = response.json()
        return told

    async def refused(self, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, Any]]:
        response = await self.post(path, body, **headers)
        error: dict[str, Any] = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return response.status_code, error


@asynccontextmanager
async def serving(folder: Path, engine: ScriptedEngine, **more: Any) -> AsyncIterator[Served]:
    served = Served(folder, engine, **more)
    running = asyncio.ensure_future(served.server.run())
    try:
        served.client.base_url = httpx.URL(served.server.url)
        await served.server.up.wait()
        served.gate.set_weights(5, 0)
        async with served.client:
            yield served
    finally:
        running.cancel()
        await asyncio.wait([running])
    assert running.cancelled(), running


async def test_a_conversation_goes_on_from_its_ids_and_is_on_disk_before_it_is_told(tmp_path: Path) -> None:
    engine = ScriptedEngine(["one", "two", "three"])
    async with serving(tmp_path, engine) as served:
        first = await served.said(CHAT, {"messages": [user("a")]})
        messages = [user("a"), message_of(first), user("b")]
        streamed = await served.post(CHAT, {"messages": messages, "stream": True})
        assert '"content":"two"' in streamed.text
        assert engine.requests[1].prompt[: len(engine.requests[0].prompt) + 4] == (
            *engine.requests[0].prompt,
            *engine.drawn[0].tokens,
        )
        second = streamed.text.partition('"id":"')[2].partition('"')[0]
        feedback = {"reward": 1, "msg_ids": [first["id"], second], "task_id": 7}
        assert (await served.said("/feedback", feedback)) == {"status": "success", "recorded": True}
        assert (await served.said("/feedback", feedback)) == {"status": "success", "recorded": False}
        assert (await served.said("/commit"))["waiting"] == 1
        third = await served.said(CHAT, {"messages": [user("c")]})
        await served.said("/feedback", {"reward": 0.5, "msg_ids": [third["id"]], "task_id": 7})
        assert await served.said("/commit") == {"status": "success", "committed": 2, "groups": 1, "waiting": 0}
        assert served.offered == [served.history.offer(0)]
        assert served.offered[0].rows == 1
        result = result_of(served.history.run(0, 0), max_model_len=SPEC.max_model_len)
        drawn = [token for generation in engine.drawn[:2] for token in generation.tokens]
        assert result.tokens[result.prompt_tokens :][result.loss_mask == 1].tolist() == drawn
        assert [span.version for span in result.spans] == [4, 5, 4, 5]
        assert (await served.client.get("/health")).json() == {"status": "ok", "version": 5}
        assert (await served.client.get("/v1/models")).json()["data"][0]["id"] == "tiny"
        assert "rftd_serving_committed 2\n" in (await served.client.get("/metrics")).text
    async with serving(tmp_path, engine) as again:
        assert again.offered == served.offered, "who committed may have died before it said so"


CONVERSATIONS: dict[str, tuple[Turns, dict[str, Any]]] = {
    CHAT: (lambda said: {"messages": chat_of(said)}, {}),
    "/v1/responses": (lambda said: {"input": chat_of(said)}, {"instructions": ""}),
    "/v1/messages": (lambda said: {"messages": chat_of(said)}, {"max_tokens": 400}),
    # The end of an answer is drawn, and no text has it: a bare text goes on from what was cut before its end.
    "/v1/completions": (lambda said: {"prompt": "".join(said)}, {"max_tokens": 3}),
}
"""What each API is asked of a conversation, whose texts come from both sides in turn, and the fields of every call."""


async def test_a_commit_is_acknowledged_once_the_log_knows_of_it(tmp_path: Path) -> None:
    async with serving(tmp_path, ScriptedEngine(["one", "two"])) as served:
        for number in range(2):
            answer = await served.said(CHAT, {"messages": [user(str(number))]})
            await served.said("/feedback", {"reward": float(number), "msg_ids": [answer["id"]], "task_id": 1})
        served.log_answers = False
        status, error = await served.refused("/commit")
        assert (status, error["code"]) == (503, "log_unreachable")
        status, _ = await served.refused("/commit")
        assert status == 503, "it is committed already, and still the log does not know"
        served.log_answers = True
        assert (await served.said("/commit"))["committed"] == 0
        assert [offered.rows for offered in served.offered] == [1, 1, 1]
        assert (await served.said("/commit"))["committed"] == 0
        assert len(served.offered) == 3, "the log knows it"


def chat_of(said: Sequence[str]) -> list[dict[str, Any]]:
    return [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(said)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", CONVERSATIONS)
async def test_each_api_has_its_conversations_kept_judged_and_made_one_sequence(
    tmp_path: Path, path: str, stream: bool
) -> None:
    asked, fixed = CONVERSATIONS[path]
    engine = ScriptedEngine(["one", "two"])
    said: list[str] = []
    ids = []
    async with serving(tmp_path, engine) as served:
        for question, answer in (("a", "one"), ("b", "two")):
            said.append(question)
            response = await served.post(path, {**fixed, **asked(said), "stream": stream})
            assert response.status_code == 200, response.text
            ids.append(first_id(response, stream=stream))
            said.append(answer)
            assert answer in response.text
        feedback = {"reward": 1, "msg_ids": ids, "task_id": "t"}
        assert (await served.said("/feedback", feedback))["recorded"]
        other = await served.said(CHAT, {"messages": [user("c")]})
        await served.said("/feedback", {"reward": 0, "msg_ids": [other["id"]], "task_id": "t"})
        assert (await served.said("/commit"))["groups"] == 1
        result = result_of(served.history.run(0, 0), max_model_len=SPEC.max_model_len)
    drawn = [token for generation in engine.drawn[:2] for token in generation.tokens]
    assert not result.steps, "one sequence"
    assert result.tokens[result.prompt_tokens :][result.loss_mask == 1].tolist() == drawn
    assert len(set(ids)) == 2


def first_id(response: httpx.Response, *, stream: bool) -> str:
    """The id of an answer: the first in its events, or in the object."""
    if stream:
        assert response.headers["content-type"].startswith("text/event-stream")
        return response.text.partition('"id":"')[2].partition('"')[0]
    return str(response.json()["id"])


async def test_a_conversation_goes_on_whatever_api_it_goes_on_by(tmp_path: Path) -> None:
    engine = ScriptedEngine(["one", "two", "three"])
    async with serving(tmp_path, engine) as served:
        await served.said(CHAT, {"messages": chat_of(["a"])})
        await served.said("/v1/messages", {"messages": chat_of(["a", "one", "b"]), "max_tokens": 9})
        await served.said("/v1/responses", {"input": chat_of(["a", "one", "b", "two", "c"])})
    for before, request, drawn in zip(engine.requests, engine.requests[1:], engine.drawn, strict=False):
        ids = (*before.prompt, *drawn.tokens)
        assert request.prompt[: len(ids)] == ids


async def test_a_stream_tells_what_is_drawn_and_ends_once_the_answer_is_on_disk(tmp_path: Path) -> None:
    engine = ScriptedEngine(["one"], steps=asyncio.Semaphore(1))
    assert engine.steps is not None
    body = {"messages": [user("a")], "stream": True}
    async with serving(tmp_path, engine) as served:
        async with served.client.stream("POST", CHAT, json=body) as response:
            lines = response.aiter_lines()
            told = ""
            while '"content":"o"' not in told:
                told = await anext(lines)
            id = told.partition('"id":"')[2].partition('"')[0]
            assert not engine.drawn
            early = {"reward": 1, "msg_ids": [id], "task_id": "t"}
            assert (await served.refused("/feedback", early))[0] == 404, "it can be judged once it is complete"
            for _ in range(3):
                engine.steps.release()
            assert [line async for line in lines if line][-1] == "data: [DONE]"
        assert (await served.said("/feedback", early))["recorded"]


async def test_an_answer_that_cannot_be_kept_is_no_answer(tmp_path: Path) -> None:
    """Its disk is full: a client is told so in place of the answer, or of the end of its stream."""
    engine = ScriptedEngine(["one"])
    async with serving(tmp_path, engine) as served:
        await served.said(CHAT, {"messages": [user("a")]})
        pages = served.history._writer.execute("PRAGMA page_count").fetchone()[0]
        served.history._writer.execute(f"PRAGMA max_page_count = {pages}")
        long = {"messages": [user("a" * 2500)]}
        reply = await served.post(CHAT, long)
        while reply.status_code == 200:  # there is room in the pages
            reply = await served.post(CHAT, long)
        assert (reply.status_code, reply.json()["error"]["type"]) == (507, "server_error")
        engine.steps = asyncio.Semaphore(1)
        async with served.client.stream("POST", CHAT, json={**long, "stream": True}) as stream:
            events = stream.aiter_lines()
            while '"content":"o"' not in await anext(events):
                pass
            for _ in range(3):
                engine.steps.release()
            rest = [event async for event in events if event]
        assert '"code":"RFTD-WRK-006"' in rest[-1]
        assert not any('"finish_reason":"stop"' in event or "[DONE]" in event for event in rest)


async def test_what_cannot_be_is_refused_as_openai_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path, ScriptedEngine(["one", "two"])) as served:
        assert (await served.refused("/v1/embeddings"))[0] == 404
        for path in CONVERSATIONS:
            status, error = await served.refused(path, {"nonsense": 1})
            assert (status, error["type"]) == (400, "invalid_request_error")
        told = {"input": "a", "previous_response_id": "resp_1"}
        assert (await served.refused("/v1/responses", told))[1]["param"] == "previous_response_id"
        assert (await served.client.get("/v1/models/any")).json()["id"] == "any"
        status, error = await served.refused(CHAT, {"messages": [user("a")], "nonsense": 1})
        assert (status, error["param"], error["code"]) == (400, "nonsense", "unknown_parameter")
        assert (await served.refused(CHAT, {"messages": [user("a" * 4000)]}))[1]["code"] == "context_length_exceeded"
        assert (await served.refused(CHAT, {"messages": [user("a" * limits.ENDPOINT_BODY_SIZE_BYTES)]}))[0] == 413
        id = (await served.said(CHAT, {"messages": [user("a")], "temperature": 0}))["id"]
        for status, body in (
            (400, {"reward": 1}),
            (400, {"reward": 1e40, "msg_ids": [id]}),
            (400, {"reward": 1, "msg_ids": []}),
            (400, {"reward": 1, "msg_ids": [id], "x": 1}),
            (400, {"reward": 1, "msg_ids": ["x" * 1000]}),
            (404, {"reward": 1, "msg_ids": ["chatcmpl-of-another"]}),
            (400, {"reward": 1, "msg_ids": [id]}),
        ):
            assert (await served.refused("/feedback", body))[0] == status, body
        with monkeypatch.context() as full:
            full.setattr(limits, "SERVED_RUNS", 0)
            drawn = await served.said(CHAT, {"messages": [user("b")]})
            refused = await served.post("/feedback", {"reward": 1, "msg_ids": [drawn["id"]]})
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert refused.json()["error"]["code"] == "feedback_backlog_full"
        assert served.history.counts()["judged"] == 0
        assert (await served.refused("/commit", **{"origin": "https://evil.example"}))[0] == 403
        assert (await served.refused("/commit", **{"host": "evil.example"}))[0] == 403
        with pytest.raises(ConflictError):
            Served(tmp_path, ScriptedEngine(), port=served.client.base_url.port)
    with pytest.raises(ConfigError, match="no key"):
        Served(tmp_path, ScriptedEngine(), address="0.0.0.0")
    monkeypatch.setenv(SERVE_KEY, "sesame")
    async with serving(tmp_path, ScriptedEngine()) as served:
        assert (await served.refused("/commit"))[0] == 401
        said = {"messages": [user("a")], "max_tokens": 5}
        assert (await served.refused("/v1/messages", said))[0] == 401
        assert (await served.post("/v1/messages", said, **{"x-api-key": "sesame"})).status_code == 200
        assert (await served.refused("/commit", authorization="Bearer wrong"))[1]["code"] == "invalid_api_key"
        assert (await served.post("/commit", authorization="Bearer sesame")).status_code == 200
        assert (await served.client.get("/health")).status_code == 200


async def test_who_hangs_up_leaves_nothing_and_who_waits_too_long_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = ScriptedEngine(hold=True)
    async with serving(tmp_path, engine) as served:
        monkeypatch.setattr(limits, "SERVED_CALLS", 1)
        asked = asyncio.ensure_future(served.post(CHAT, {"messages": [user("a")]}))
        await engine.until(lambda held: held.running == 1)
        assert (await served.refused(CHAT, {"messages": [user("b")]}))[0] == 429
        asked.cancel()
        await engine.until(lambda held: held.running == 0)
        engine.go.set()
        engine.steps = asyncio.Semaphore(1)
        async with served.client.stream("POST", CHAT, json={"messages": [user("a")], "stream": True}) as response:
            lines = response.aiter_lines()
            while '"content":"f"' not in await anext(lines):
                pass
            assert engine.running == 1
        await engine.until(lambda held: held.running == 0)
        engine.steps = None
        await served.said(CHAT, {"messages": [user("b")]})
        assert served.history.counts()["answers"] == 1, "what nobody waited for is not kept"
    engine.go.clear()
    async with serving(tmp_path / "late", engine, timeout_s=0.05) as served:
        monkeypatch.undo()
        assert (await served.refused(CHAT, {"messages": [user("b")]}))[0] == 504
        engine.go.set()
        engine.steps = asyncio.Semaphore(1)
        begun = await served.post(CHAT, {"messages": [user("b")], "stream": True})
        assert '"content":"f"' in begun.text
        assert '"code":"timeout"' in begun.text.strip().split("\n")[-1]
        assert engine.running == 0
        assert served.history.counts()["answers"] == 0
