"""The rehearsal of the Tinker service over HTTP on the loopback, as `tinker` 0.38 speaks to it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
from synthetic.models.tinker_rehearsal import Rehearsal, Unknown

from rftd.workers.tinker.service import AdamStep, ServiceSampling, TokenRow

_PRE = "/api/v1/"


class Server(ThreadingHTTPServer):
    """A rehearsal of the service, over HTTP; requests of the wire are those of `tinker` 0.38."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.service = Rehearsal()
        self.answers: dict[str, Any] = {}
        self.sessions = 0
        self.asked: list[str] = []
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, verb: str, path: str, body: bytes, proto: bool) -> Any:
        what = path.removeprefix(_PRE).partition("?")[0]
        self.asked.append(what)
        asked: dict[str, Any] = {} if proto or not body else json.loads(body)
        if what == "client/config":
            return {"parallel_fwdbwd_chunks": False, "fwdbwd_max_chunk_len": 1024}
        if what == "create_session":
            self.sessions += 1
            return {"type": "create_session", "session_id": f"s{self.sessions}"}
        if what == "create_sampling_session":
            if asked["model_path"] not in self.service.saved:
                raise Unknown(404, "no such weights")
            self.answers[asked["session_id"]] = asked["model_path"]
            return {"type": "create_sampling_session", "sampling_session_id": asked["session_id"]}
        if what == "get_info":
            return {"type": "get_info", "model_id": asked["model_id"], "model_data": {"model_name": "org/tiny"}}
        if what == "retrieve_future":
            return self.answers[asked["request_id"]]
        if what.startswith("samplers/"):
            session = what.split("/")[1]
            return {"sampler_id": session, "base_model": "org/tiny", "model_path": self.answers.get(session)}
        if what.startswith("training_runs/"):
            _, run, _, *rest = what.split("/")
            if verb == "DELETE":
                self.service.saved.pop(f"tinker://{run}/{'/'.join(rest)}", None)
                return None
            if run not in self.service.runs:
                raise Unknown(404, f"no training run {run}")
            return {"checkpoints": [_listed(path) for path in self.service.saved if f"//{run}/" in path]}
        if work := getattr(self, f"_{what}", None):
            number = str(len(self.answers))
            self.answers[number] = work(body if proto else asked)
            return {"request_id": number, "sample_sequence_ids": [f"q{number}"]}
        return {}

    def _named(self, made: str, asked: dict[str, Any]) -> str:
        name = f"{asked['session_id']}:train:{asked['model_seq_id']}"
        self.service.runs[name] = self.service.runs.pop(made)
        self.service.runs[f"spent-{name}"] = self.service.runs[name]
        return name

    def _create_model(self, asked: dict[str, Any]) -> Any:
        return {"type": "create_model", "model_id": self._named(self.service.new_run(asked["base_model"]), asked)}

    def _load_weights(self, asked: dict[str, Any]) -> Any:
        self._named(self.service.run_from(asked["path"], optimizer=asked["optimizer"]), asked)
        return {"type": "load_weights", "path": asked["path"]}

    def _forward_backward(self, body: bytes) -> Any:
        from tinker.proto.tinker_public_pb2 import DTYPE_FLOAT32, ForwardBackwardOutput, ForwardBackwardRequest

        asked = ForwardBackwardRequest.FromString(body)
        rows = []
        for datum in asked.data:
            tokens = np.frombuffer(datum.model_input[0].encoded_text.tokens, np.int32).astype(np.int64)
            found = {name: each.dense for name, each in datum.loss_fn_inputs.items()}
            targets = np.frombuffer(found.pop("target_tokens"), np.int64)
            columns = {name: np.frombuffer(each, np.float32) for name, each in found.items()}
            rows.append(TokenRow(tokens=tokens, targets=targets, columns=columns))
        if asked.forward_only:
            made = self._execute(asked.model_id, asked.seq_id, lambda run: self.service.forward(run, rows))
        else:
            config = dict(asked.loss_fn_config)
            made = self._execute(
                asked.model_id, asked.seq_id, lambda run: self.service.gradient(run, rows, asked.loss_fn, config)
            )
        arrays = [np.array(each["logprobs"], np.float32) for each in made["rows"]]
        offsets = np.cumsum([0, *(each.nbytes for each in arrays)]).astype(np.int64)
        answer = ForwardBackwardOutput(loss_fn_output_type="ArrayRecord", metrics=made["metrics"])
        record = answer.loss_fn_outputs.add()
        record.num_datums = len(arrays)
        record.fields["logprobs"].data = np.concatenate(arrays).tobytes()
        record.fields["logprobs"].offsets = offsets.tobytes()
        record.fields["logprobs"].dtype = DTYPE_FLOAT32
        return answer.SerializeToString()

    def _optim_step(self, asked: dict[str, Any]) -> Any:
        given = asked.get("adam_params") or asked["optim_params"]
        adam = AdamStep(
            rate=given["learning_rate"],
            betas=(given["beta1"], given["beta2"]),
            eps=given["eps"],
            weight_decay=given["weight_decay"],
            clip=given["grad_clip_norm"],
        )
        self._execute(asked["model_id"], asked["seq_id"], lambda run: self.service.step(run, adam))
        return {"type": "optim_step"}

    def _save_weights(self, asked: dict[str, Any]) -> Any:
        return {"type": "save_weights", "path": self._save(asked, "weights")}

    def _save_weights_for_sampler(self, asked: dict[str, Any]) -> Any:
        return {"type": "save_weights_for_sampler", "path": self._save(asked, "sampler_weights")}

    def _save(self, asked: dict[str, Any], kind: str) -> Any:
        run = asked["model_id"]
        return self._execute(run, asked["seq_id"], lambda _: self.service.save(asked["path"], run, kind))

    def _asample(self, asked: dict[str, Any]) -> Any:
        from tinker.proto.tinker_public_pb2 import STOP_REASON_LENGTH, STOP_REASON_STOP, SampleResponse

        given = asked["sampling_params"]
        draw = ServiceSampling(
            max_tokens=given["max_tokens"],
            temperature=given["temperature"],
            top_p=given["top_p"],
            top_k=given["top_k"],
            seed=given["seed"],
            stop=None,
        )
        prompt = [token for chunk in asked["prompt"]["chunks"] for token in chunk["tokens"]]
        made = self.service.sample(self.answers[asked["sampling_session_id"]], prompt, draw)
        answer = SampleResponse()
        sequence = answer.sequences.add()
        sequence.tokens = np.array(made["tokens"], np.int32).tobytes()
        sequence.logprobs = np.array(made["logprobs"], np.float32).tobytes()
        sequence.stop_reason = STOP_REASON_STOP if made["stop_reason"] == "stop" else STOP_REASON_LENGTH
        return answer.SerializeToString()

    def _execute(self, run: str, seq_id: int, work: Any) -> Any:
        return self.service.execute(run, seq_id - 1, work)


def _listed(path: str) -> dict[str, str]:
    _, _, kind_and_name = path.removeprefix("tinker://").partition("/")
    kind = "training" if kind_and_name.startswith("weights/") else "sampler"
    when = "2026-01-01T00:00:00Z"
    return {"checkpoint_id": kind_and_name, "checkpoint_type": kind, "time": when, "tinker_path": path}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        return

    def _any(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.server.service.away:
            # Like a machine that is gone: the connection ends without an answer.
            self.close_connection = True
            return
        if self.headers.get("content-encoding") == "zstd":
            import zstandard

            body = zstandard.ZstdDecompressor().decompress(body)
        status = 200
        with self.server.lock:
            try:
                if "healthz" not in self.path and self.headers.get("x-api-key") not in self.server.service.keys:
                    raise Unknown(401, f"invalid key {self.headers.get('x-api-key')}")
                proto = "protobuf" in (self.headers.get("content-type") or "")
                found = self.server.answer(self.command, self.path, body, proto)
            except Unknown as error:
                status = error.status
                found = {"error": str(error)}
        data = found if isinstance(found, bytes) else json.dumps(found).encode()
        self.send_response(status)
        self.send_header("content-type", "application/x-protobuf" if isinstance(found, bytes) else "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_DELETE = _any


@contextmanager
def served() -> Iterator[Server]:
    """The server, which answers until the block ends."""
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        yield made
        made.shutdown()
