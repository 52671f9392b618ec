"""The fake of the Tinker protocol is held to a recording: what a real client asked a real server, and was answered.

It may say more, for later releases of the client ask for more, but each recorded field is there, of its type, and rows
of numbers have their lengths. `make record-tinker` makes the recording anew (tests/bench/tinker/converse.py says what
is asked).
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from google.protobuf.unknown_fields import UnknownFieldSet
from synthetic.models import tinker_messages as wire
from synthetic.models.tinker_over_http import Server, served
from synthetic.models.tinker_rehearsal import KEY, Unknown

RECORDING = Path(__file__).parents[1] / "golden" / "tinker" / "skyrl_0.4.0.jsonl"

NAMES = ("session_id", "model_id", "request_id", "sampling_session_id", "path", "tinker_path", "model_path")
"""The fields whose values each server makes up by itself."""


def exchanges() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RECORDING.read_text().splitlines()]


@pytest.fixture
def server() -> Iterator[Server]:
    with served() as made:
        yield made


def failed(exchange: Mapping[str, Any]) -> bool:
    """True for the result of a request that was begun and failed."""
    return exchange["path"].endswith("/retrieve_future") and exchange["status"] == 400


class Replay:
    """The recorded requests, asked of the fake by the names that it gives."""

    def __init__(self, server: Server, client: httpx.Client) -> None:
        self.server = server
        self.client = client
        self.names: dict[str, str] = {}
        """The fake's names, by those of the recording."""
        self.kinds: dict[str, str] = {}
        """What a result was asked for, by its number in the recording."""
        self.failed = {each["asked"]["json"]["request_id"] for each in exchanges() if failed(each)}
        """The numbers of requests that the recorded server began, and that failed there."""

    def ask(self, exchange: Mapping[str, Any]) -> httpx.Response:
        """The fake's answer to the recorded request."""
        headers = {"x-api-key": KEY}
        asked = exchange["asked"]
        content: bytes = b""
        if asked is not None and "json" in asked:
            headers["content-type"] = "application/json"
            content = json.dumps(self._named(asked["json"])).encode()
        elif asked is not None:
            headers["content-type"] = wire.PROTOBUF
            message = wire.read("ForwardBackwardRequest", base64.b64decode(asked["protobuf"]))
            message.model_id = self.names[message.model_id]
            content = message.SerializeToString()
        self.server.late = exchange["status"] == 408
        self.server.full = ((exchange["answered"] or {}).get("json") or {}).get("request_id") in self.failed
        return self.client.request(exchange["verb"], self._in(exchange["path"]), headers=headers, content=content)

    def learn(self, recorded: Any, found: Any) -> None:
        """Takes the names of an answer."""
        if isinstance(recorded, dict):
            for name, value in recorded.items():
                if name in NAMES and isinstance(value, str):
                    self.names[value] = found[name]
                else:
                    self.learn(value, found[name])
        elif isinstance(recorded, list):
            for one, other in zip(recorded, found, strict=False):
                self.learn(one, other)

    def _named(self, value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {each: self._named(inner, each) for each, inner in value.items()}
        if isinstance(value, list):
            return [self._named(inner, name) for inner in value]
        return self._in(value) if name in NAMES and isinstance(value, str) else value

    def _in(self, text: str) -> str:
        return self.names.get(text) or "/".join(self.names.get(part, part) for part in text.split("/"))


def what_of(exchange: Mapping[str, Any]) -> str:
    """A request's name, without those that servers make up."""
    parts: list[str] = exchange["path"].removeprefix("/api/v1/").split("/")
    return "/".join([parts[0], *parts[2:3]]) if parts[0] in ("samplers", "training_runs") else "/".join(parts)


def answer_of(kind: str, body: bytes) -> Any:
    """The content of a protobuf answer, in plain data."""
    name = "SampleResponse" if kind == "asample" else "ForwardBackwardOutput"
    found = wire.read(name, body)
    assert not len(UnknownFieldSet(found)), f"{name} has fields that tinker_messages.py does not know"
    if name == "SampleResponse":
        return {"sequences": [_sequence(each) for each in found.sequences]}
    rows: dict[str, list[list[float]]] = {}
    for record in found.loss_fn_outputs:
        assert not len(UnknownFieldSet(record))
        for field, tensor in record.fields.items():
            rows.setdefault(field, []).extend(wire.unbatched(tensor))
            assert len(rows[field]) == record.num_datums
    return {"loss_fn_output_type": found.loss_fn_output_type, "metrics": dict(found.metrics), "rows": rows}


def _sequence(found: Any) -> dict[str, Any]:
    assert not len(UnknownFieldSet(found))
    tokens = np.frombuffer(found.tokens, np.int32).tolist()
    logprobs = np.frombuffer(found.logprobs, np.float32).tolist()
    assert len(tokens) == len(logprobs) > 0
    # How many were drawn is chance.
    return {"tokens": tokens[:1], "logprobs": logprobs[:1], "stop_reason": wire.STOP_REASONS[found.stop_reason]}


def differences(recorded: Any, found: Any, where: str = "") -> Iterator[str]:
    """Where an answer has another shape than the recorded one: fields, types, and lengths of rows of numbers."""
    if isinstance(recorded, dict) and isinstance(found, dict):
        for name, value in recorded.items():
            if name not in found:
                yield f"{where}.{name} is missing"
            else:
                yield from differences(value, found[name], f"{where}.{name}")
    elif isinstance(recorded, list) and isinstance(found, list):
        if len(recorded) != len(found):
            yield f"{where} has {len(found)} entries, and {len(recorded)} are on record"
        for number, (one, other) in enumerate(zip(recorded, found, strict=False)):
            yield from differences(one, other, f"{where}[{number}]")
    elif type(recorded) is not type(found):
        yield f"{where} is {type(found).__name__}, and {type(recorded).__name__} is on record"


def drift(server: Server) -> list[str]:
    """Where the fake answers otherwise than the recorded server did."""
    with httpx.Client(base_url=server.url, timeout=60.0) as client:
        return list(_drift(Replay(server, client)))


def _drift(replay: Replay) -> Iterator[str]:
    for number, exchange in enumerate(exchanges(), 1):
        what = what_of(exchange)
        recorded = exchange["answered"]
        if what == "retrieve_future":
            what = replay.kinds.get(exchange["asked"]["json"]["request_id"], "nothing")
        answer = replay.ask(exchange)
        at = f"{number} {exchange['verb']} {exchange['path']} ({what})"
        if answer.status_code != exchange["status"]:
            yield f"{at}: {answer.status_code}, and {exchange['status']} is on record: {answer.text}"
        elif recorded is None:
            assert not answer.content, at
        elif "protobuf" in recorded:
            assert answer.headers["content-type"] == wire.PROTOBUF, at
            there = answer_of(what, base64.b64decode(recorded["protobuf"]))
            yield from (f"{at}: answer{each}" for each in differences(there, answer_of(what, answer.content)))
        else:
            found = answer.json()
            other = [f"{at}: answer{each}" for each in differences(recorded["json"], found)]
            yield from other
            if isinstance(request_id := recorded["json"].get("request_id"), str):
                replay.kinds[request_id] = what
            if not other:
                replay.learn(recorded["json"], found)


def test_the_fake_answers_in_the_recorded_shape(server: Server) -> None:
    assert drift(server) == []


@pytest.mark.parametrize(
    ("place", "bug", "said"),
    [
        ("_now_session_heartbeat", lambda _found: {}, "answer.type is missing"),
        ("_optim_step", lambda found: found | {"metrics": None}, "answer.metrics is NoneType, and dict is on record"),
        (
            "_now_weights_info",
            lambda found: found | {"lora_rank": "32"},
            "answer.lora_rank is str, and int is on record",
        ),
        ("_checkpoints", lambda found: found and {"checkpoints": found["checkpoints"][:1]}, "has 1 entries, and 2"),
        ("_forward_backward", lambda found: _without_losses(found), "answer.rows.elementwise_loss is missing"),
        ("_now_healthz", lambda _found: _refuse(503), "503, and 200 is on record"),
    ],
)
def test_a_fake_that_drifts_from_the_recording_is_found(
    server: Server, monkeypatch: pytest.MonkeyPatch, place: str, bug: Callable[[Any], Any], said: str
) -> None:
    right = getattr(Server, place)
    monkeypatch.setattr(Server, place, lambda self, *asked: bug(right(self, *asked)))
    assert any(said in each for each in drift(server))


def _without_losses(body: bytes) -> bytes:
    found = wire.read("ForwardBackwardOutput", body)
    for record in found.loss_fn_outputs:
        del record.fields["elementwise_loss"]
    whole: bytes = found.SerializeToString()
    return whole


def _refuse(status: int) -> None:
    raise Unknown(status, "away")


def test_the_recording_is_small_and_names_no_key_and_no_machine() -> None:
    text = RECORDING.read_text()
    bodies = [each[side] for each in exchanges() for side in ("asked", "answered") if each[side] is not None]
    text += "".join(str(base64.b64decode(body["protobuf"])) for body in bodies if "protobuf" in body)
    assert len(text) < 200_000
    assert not [each for each in ("tml-", "api-key", "127.0.0.1", "localhost") if each in text]
    assert not re.findall(r"[\"'\x00-\x20]/(?!api/v1/)\w+/[^\"']*", text), "a path of the machine that it was made on"
