"""The rehearsal of the Tinker service over HTTP on the loopback, as `tinker` 0.38 speaks to it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
from synthetic.models import tinker_messages as wire
from synthetic.models.tinker_rehearsal import Rehearsal, Unknown

from rftd.workers.engines.tinker.service import AdamStep, ServiceSampling, TokenRow

_PRE = "/api/v1/"


class Server(ThreadingHTTPServer):
    """A rehearsal of the service, over HTTP.

    Its answers have the fields of the recorded ones (tests/integration/test_tinker_recording.py), and those that only
    later releases of the client ask for.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.service = Rehearsal()
        self.answers: dict[str, Any] = {}
        self.sessions = 0
        self.asked: list[str] = []
        self.lock = threading.Lock()
        self.late = 0
        """So many requests for a result are told to come again."""
        self.late_as = 408
        """How that is told: by this status, or 200 with words, as the service itself does."""
        self.full = False
        """True: no run is begun any more, which is said when its result is asked for."""
        self.requests: dict[tuple[str, int], Any] = {}
        """What was asked under each number of a run."""
        self.knows_runs = False
        """True: the list of a run that was never there is an error, and not an empty one."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, verb: str, path: str, body: bytes, proto: bool) -> Any:
        what = path.removeprefix(_PRE).partition("?")[0]
        self.asked.append(what)
        asked: dict[str, Any] = {} if proto or not body else json.loads(body)
        if what.startswith("samplers/"):
            session = what.split("/")[1]
            return {"sampler_id": session, "base_model": "org/tiny", "model_path": self.answers.get(session)}
        if what.startswith("training_runs/"):
            return self._checkpoints(verb, what)
        if at_once := getattr(self, f"_now_{what.replace('/', '_')}", None):
            return at_once(asked)
        if work := getattr(self, f"_{what}", None):
            self._check(what, body if proto else asked)
            number = str(len(self.answers))
            # Known before it is done: what is asked for is in the request.
            told = {
                "future_id": number,
                "status": "pending",
                "request_id": number,
                "sample_sequence_ids": [f"q{number}"],
            }
            try:
                made = self._begun(work, what, body if proto else asked)
            except Failed as error:
                made = error
            self.answers[number] = made
            return told | self._created(asked) if what == "create_model" else told
        raise Unknown(404, "Not Found")

    def _begun(self, work: Callable[[Any], Any], what: str, asked: Any) -> Any:
        if self.full and what in ("create_model", "load_weights"):
            raise Failed("Maximum number of LoRA adapters (8) reached")
        if what == "save_weights" and asked["model_id"] not in self.service.runs:
            raise Failed(f"Model {asked['model_id']} not loaded")
        return work(asked)

    def _check(self, what: str, asked: Any) -> None:
        """Refuses what a server refuses before it begins."""
        if what == "forward_backward":
            if isinstance(asked, dict):
                raise Unknown(415, f"forward_backward requires a {wire.PROTOBUF} body")
            message = wire.read("ForwardBackwardRequest", asked)
            asked = {"model_id": message.model_id, "seq_id": message.seq_id, "body": asked}
        rate = asked.get("adam_params", {}).get("learning_rate", 0.0)
        if not isinstance(rate, int | float):
            where = ["body", "adam_params", "learning_rate"]
            raise Unknown(422, [{"type": "float_parsing", "loc": where, "msg": "not a number", "input": rate}])
        if "model_id" not in asked:
            return
        if asked["model_id"] not in self.service.runs and what != "save_weights":
            raise Unknown(404, "Model not found")
        if what in ("forward_backward", "optim_step"):
            known = self.requests.setdefault((asked["model_id"], asked["seq_id"]), asked)
            if known != asked:
                raise Unknown(409, "Training request sequence number was reused")

    def _now_healthz(self, _asked: dict[str, Any]) -> Any:
        return {"status": "ok"}

    def _now_get_server_capabilities(self, _asked: dict[str, Any]) -> Any:
        return {"supported_models": [{"model_name": each} for each in self.service.models]}

    def _now_client_config(self, _asked: dict[str, Any]) -> Any:
        return {"pjwt_auth_enabled": False, "parallel_fwdbwd_chunks": False, "fwdbwd_max_chunk_len": 1024}

    def _now_create_session(self, _asked: dict[str, Any]) -> Any:
        self.sessions += 1
        said = dict.fromkeys(("info_message", "warning_message", "error_message"))
        return {"type": "create_session", "session_id": f"s{self.sessions}", **said}

    def _now_session_heartbeat(self, _asked: dict[str, Any]) -> Any:
        return {"type": "session_heartbeat"}

    def _now_create_sampling_session(self, asked: dict[str, Any]) -> Any:
        session = f"{asked['session_id']}:sample:{asked['sampling_session_seq_id']}"
        self.answers[session] = asked["model_path"]
        return {"type": "create_sampling_session", "sampling_session_id": session}

    def _now_get_info(self, asked: dict[str, Any]) -> Any:
        return {"type": "get_info", "model_id": asked["model_id"], "model_data": {"model_name": "org/tiny"}}

    def _now_weights_info(self, asked: dict[str, Any]) -> Any:
        if asked["tinker_path"] not in self.service.saved:
            raise Unknown(404, f"Checkpoint not found: {asked['tinker_path']}")
        return {"base_model": "org/tiny", "is_lora": True, "lora_rank": 32}

    def _now_retrieve_future(self, asked: dict[str, Any]) -> Any:
        if self.late:
            self.late -= 1
            if self.late_as == 200:
                return {"type": "try_again", "request_id": asked["request_id"], "queue_state": "active"}
            raise Unknown(self.late_as, "Timeout waiting for result")
        if asked["request_id"] not in self.answers:
            raise Unknown(404, "Future not found")
        found = self.answers[asked["request_id"]]
        if isinstance(found, Failed):
            raise Unknown(400, str(found))
        return found

    def _checkpoints(self, verb: str, what: str) -> Any:
        _, run, _, *rest = what.split("/")
        if verb == "DELETE":
            if self.service.saved.pop(f"tinker://{run}/{'/'.join(rest)}", None) is None:
                raise Unknown(404, f"Checkpoint not found: {run}/{rest[-1]}")
            return None
        if self.knows_runs and run not in self.service.runs:
            raise Unknown(404, f"no training run {run}")
        return {"checkpoints": [_listed(path) for path in self.service.saved if f"//{run}/" in path]}

    def _named(self, made: str, asked: dict[str, Any]) -> str:
        name = f"{asked['session_id']}:train:{asked['model_seq_id']}"
        self.service.runs[name] = self.service.runs.pop(made)
        self.service.runs[f"spent-{name}"] = self.service.runs[name]
        return name

    def _create_model(self, asked: dict[str, Any]) -> Any:
        made = self._named(self.service.new_run(asked["base_model"]), asked)
        shape = {"rank": 32, "seed": 1, "train_unembed": True, "train_mlp": True, "train_attn": True}
        given = {name: value for name, value in asked["lora_config"].items() if value is not None}
        return {
            "type": "create_model",
            "model_id": made,
            "base_model": asked["base_model"],
            "lora_config": shape | given | {"alpha": 32.0},
        }

    def _created(self, asked: dict[str, Any]) -> dict[str, Any]:
        shape = {"rank": asked["lora_config"].get("rank", 32), "seed": asked["lora_config"].get("seed")}
        return {
            "model_id": f"{asked['session_id']}:train:{asked['model_seq_id']}",
            "base_model": asked["base_model"],
            "lora_config": shape,
            "status": "created",
        }

    def _load_weights(self, asked: dict[str, Any]) -> Any:
        run = asked.get("model_id")
        if any(known == run for known, _ in self.service.done):
            raise Unknown(400, f"LoadWeights is not permitted with seq_id {asked['seq_id']}")
        made = self.service.run_from(asked["path"], optimizer=asked["optimizer"])
        if run is None:  # later releases make the run by the same request
            self._named(made, asked)
            return {"type": "load_weights", "path": asked["path"]}
        fresh = self.service.runs[run]
        loaded = self.service.runs.pop(made)
        self.service.runs |= {name: loaded for name, each in self.service.runs.items() if each is fresh}
        return self._execute(run, asked["seq_id"], lambda _: {"type": "load_weights", "path": asked["path"]})

    def _forward_backward(self, body: bytes) -> Any:
        asked = wire.read("ForwardBackwardRequest", body)
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
        answer = wire.new("ForwardBackwardOutput")
        answer.loss_fn_output_type = "scalar"
        answer.metrics.update(made["metrics"])
        record = answer.loss_fn_outputs.add()
        record.num_datums = len(rows)
        for name in made["rows"][0]:
            record.fields[name].CopyFrom(wire.batched([np.array(each[name], np.float32) for each in made["rows"]]))
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
        figures = {"skyrl.ai/grad_norm": 1.0, "skyrl.ai/learning_rate": adam.rate}
        return {"type": "optim_step", "metrics": figures}

    def _save_weights(self, asked: dict[str, Any]) -> Any:
        return {"type": "save_weights", "path": self._save(asked, "weights")}

    def _save_weights_for_sampler(self, asked: dict[str, Any]) -> Any:
        path = self._save(asked, "sampler_weights")
        return {"type": "save_weights_for_sampler", "path": path, "sampling_session_id": None}

    def _save(self, asked: dict[str, Any], kind: str) -> Any:
        run = asked["model_id"]
        return self._execute(run, asked["seq_id"], lambda _: self.service.save(asked["path"], run, kind))

    def _asample(self, asked: dict[str, Any]) -> Any:
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
        answer = wire.new("SampleResponse")
        sequence = answer.sequences.add()
        sequence.tokens = np.array(made["tokens"], np.int32).tobytes()
        sequence.logprobs = np.array(made["logprobs"], np.float32).tobytes()
        sequence.stop_reason = wire.STOP_REASONS.index(made["stop_reason"])
        return answer.SerializeToString()

    def _execute(self, run: str, seq_id: int, work: Any) -> Any:
        return self.service.execute(run, seq_id - 1, work)


class Failed(Exception):
    """What was begun failed."""


def _listed(path: str) -> dict[str, str]:
    _, _, kind_and_name = path.removeprefix("tinker://").partition("/")
    kind = "training" if kind_and_name.startswith("weights/") else "sampler"
    when = "2026-01-01T00:00:00Z"
    return {"checkpoint_id": kind_and_name, "checkpoint_type": kind, "time": when, "tinker_path": path}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer in one piece: the second of two would wait for the first one's acknowledgement
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
                found = {"detail": error.said}
        data = found if isinstance(found, bytes) else json.dumps(found).encode()
        if found is None:
            status = 204
            data = b""
        self.send_response(status)
        self.send_header("content-type", wire.PROTOBUF if isinstance(found, bytes) else "application/json")
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
