"""`rftd submit --pull`: what the daemon's cache of the hub lacks is fetched by the client, and by nobody else."""

from __future__ import annotations

import hashlib
import io
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import datasets
import pytest
from synthetic.daemon.scene import EXPERIMENT, SHORT, Scene

from rftd.daemon.http.client.pulling import pull
from rftd.daemon.http.views.hub import HubFolder, hub_folder
from rftd.ops.errors import UsageError
from rftd.workers.models.tiny_model import make_tiny_model

COMMIT = "c" * 40
_API = re.compile(r"/api/(models|datasets)/([^/]+/[^/]+)/(revision|tree)/([^/]+)")
_FILE = re.compile(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


class HubStandIn:
    """Repositories of one commit each: `models/OWNER/NAME` and `datasets/OWNER/NAME` with the bytes of their files."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.requests: list[str] = []
        """Method and path of each request."""
        self.broken: set[str] = set()
        """Files that break off after their first half, once."""
        self.gated: set[str] = set()
        """Repositories that ask for terms to be accepted."""
        self.url = ""

    def paths(self) -> list[str]:
        """The files whose bytes were sent."""
        return [
            request.rpartition("/")[2]
            for request in self.requests
            if request.startswith("GET") and "/resolve/" in request
        ]

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Answers until the block ends."""
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                _answer(stand_in, self, body=True)

            def do_HEAD(self) -> None:
                _answer(stand_in, self, body=False)

            def log_message(self, format: str, *args: Any) -> None:
                """Says nothing: standard error is the test's."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, name="hub-stand-in")
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def _answer(hub: HubStandIn, handler: BaseHTTPRequestHandler, *, body: bool) -> None:
    path = unquote(urlsplit(handler.path).path)
    hub.requests.append(f"{handler.command} {path}")
    if asked := _API.fullmatch(path):
        kind, name, what, revision = asked.groups()
        _answer_api(hub, handler, f"{kind}/{name}", what, revision)
        return
    asked = _FILE.fullmatch(path)
    files = hub.repositories.get(f"{'datasets' if asked and asked[1] else 'models'}/{asked[2]}") if asked else None
    if asked is None or files is None or asked[4] not in files:
        _send(handler, 404, b"{}", {"X-Error-Code": "EntryNotFound"})
        return
    content = files[asked[4]]
    headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
    if body and asked[4] in hub.broken:
        hub.broken.discard(asked[4])
        content_sent = content[: len(content) // 2]
        _send(handler, 200, content_sent, headers, size=len(content))
        handler.close_connection = True
        return
    start = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))
    if body and start:
        span = f"bytes {start[1]}-{len(content) - 1}/{len(content)}"
        _send(handler, 206, content[int(start[1]) :], {**headers, "Content-Range": span})
        return
    _send(handler, 200, content if body else b"", headers, size=len(content))


def _answer_api(hub: HubStandIn, handler: BaseHTTPRequestHandler, repository: str, what: str, revision: str) -> None:
    files = hub.repositories.get(repository)
    if repository in hub.gated:
        _send(handler, 403, b"{}", {"X-Error-Code": "GatedRepo"})
    elif files is None:
        _send(handler, 404, b"{}", {"X-Error-Code": "RepoNotFound"})
    elif revision not in ("main", COMMIT):
        _send(handler, 404, b"{}", {"X-Error-Code": "RevisionNotFound"})
    elif what == "revision":
        siblings = [{"rfilename": file} for file in files]
        _send(
            handler, 200, json.dumps({"id": repository.partition("/")[2], "sha": COMMIT, "siblings": siblings}).encode()
        )
    else:
        tree = [
            {"type": "file", "path": file, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
            for file, content in files.items()
        ]
        _send(handler, 200, json.dumps(tree).encode())


def _send(
    handler: BaseHTTPRequestHandler,
    status: int,
    content: bytes,
    headers: dict[str, str] | None = None,
    *,
    size: int | None = None,
) -> None:
    handler.send_response(status)
    for name, value in (headers or {}).items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(content) if size is None else size))
    handler.end_headers()
    handler.wfile.write(content)


MODEL = "models/Qwen/Tiny"
DATA = "datasets/ann/sums"
NAMES = (
    *SHORT,
    "buffer.total_steps=2",
    "buffer.batch_size=2",
    "model.model_path=Qwen/Tiny",
    "model.max_model_len=256",
    "explorer.rollout_model={engine_type: torch, engine_num: 1}",
    "trainer={trainer_type: torch, max_idle_steps: 0}",
    "buffer.explorer_input.taskset.path=ann/sums",
    "buffer.explorer_input.eval_tasksets=[]",
)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubStandIn]:
    """A hub with a model, which carries weights in a second form, and a dataset."""
    folder = tmp_path / "made"
    make_tiny_model(folder, seed=1)
    hub = HubStandIn()
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    hub.repositories[MODEL] = {**files, "pytorch_model.bin": b"pickled"}
    rows = io.BytesIO()
    datasets.Dataset.from_list([{"question": f"{n}+1=", "answer": str(n + 1)} for n in range(20)]).to_parquet(rows)
    hub.repositories[DATA] = {"README.md": b"# sums", "data/train-00000-of-00001.parquet": rows.getvalue()}
    with hub.serving():
        yield hub


@pytest.fixture
def scene(tmp_path: Path, hub: HubStandIn) -> Iterator[Scene]:
    """A daemon whose cache is empty, and which would ask this hub if it asked any."""
    folder = tmp_path / "scene"
    folder.mkdir()
    environ = {"HF_HOME": str(tmp_path / "huggingface"), "HF_ENDPOINT": hub.url, "HF_HUB_ETAG_TIMEOUT": "2"}
    scene = Scene(folder, environ=environ)
    with scene.host:
        yield scene


def submit(scene: Scene, *overrides: str, pull: bool = True) -> tuple[int, str]:
    """The exit status of a submission of the names, and what it said."""
    words = [word for override in (*NAMES, *overrides) for word in ("-s", override)]
    said = scene.rftd("submit", str(scene.write()), *(["--pull"] if pull else []), *words)
    return said.status, said.out + said.err


@pytest.mark.e2e
@pytest.mark.slow
def test_what_lacks_is_fetched_once_and_the_daemon_never_goes_out(scene: Scene, hub: HubStandIn) -> None:
    status, text = submit(scene, pull=False)
    assert status == 2
    assert "hf download Qwen/Tiny, or rftd submit --pull" in text
    assert not hub.requests, "neither the client nor the daemon asks for what was not to be pulled"

    status, text = submit(scene)
    assert status == 0, text
    assert "fetching model Qwen/Tiny" in text
    assert "1 of 2 files" in text, "the dataset's progress"
    assert f"fetched dataset ann/sums at {COMMIT}" in text
    assert "pytorch_model.bin" not in hub.paths(), "nothing here reads it"
    asked = len(hub.requests)
    page = scene.until_ended("sums", timeout_s=240.0)
    assert page.experiment.summary.state == "completed", page.experiment.summary.reason
    assert len(hub.requests) == asked, "the daemon and its workers ask nobody"
    assert COMMIT in str(page.experiment.config["model"]["model_path"])

    status, text = submit(scene, "name=again")
    assert status == 0, text
    assert "fetching" not in text
    assert len(hub.requests) == asked, "what is whole is not asked for"


@pytest.mark.e2e
@pytest.mark.slow
def test_what_the_hub_does_not_give_is_named_by_its_line(scene: Scene, hub: HubStandIn) -> None:
    hub.repositories["models/Qwen/Old"] = {"config.json": b"{}", "pytorch_model.bin": b"pickled"}
    hub.repositories["models/Qwen/Terms"] = {}
    hub.gated.add("models/Qwen/Terms")
    refused = {
        "Qwen/Tiny@v9": "the model Qwen/Tiny has no revision 'v9'",
        "Qwen/Gone": "the hub has no model Qwen/Gone",
        "Qwen/Terms": "who accepted its terms",
        "Qwen/Old": "no weights in safetensors",
    }
    for name, what in refused.items():
        file = scene.write(EXPERIMENT.replace("model_path: fake", f"model_path: {name}"))
        said = scene.rftd("submit", str(file), "--pull")
        assert said.status == 2, said.err
        assert what in said.err
        assert "exp.yaml:10" in said.err
    assert not hub.paths()


@pytest.mark.e2e
@pytest.mark.slow
def test_half_a_snapshot_is_refused_and_then_taken_up(scene: Scene, hub: HubStandIn, tmp_path: Path) -> None:
    hub.broken = {"model.safetensors"}
    status, text = submit(scene)
    assert status == 0, text
    assert hub.paths().count("model.safetensors") == 2, "it goes on with the second half"
    snapshot = tmp_path / "huggingface" / "hub" / "models--Qwen--Tiny" / "snapshots" / COMMIT
    (snapshot / "model.safetensors").unlink()
    hub.requests.clear()
    status, text = submit(scene, "name=half", pull=False)
    assert status == 2, text
    assert "model.safetensors" in text
    status, text = submit(scene, "name=whole")
    assert status == 0, text
    assert hub.paths() in (["model.safetensors"], []), "the other files are there; its bytes may be"


@pytest.mark.e2e
@pytest.mark.slow
def test_a_hub_that_is_away_is_named(scene: Scene, hub: HubStandIn) -> None:
    words = [word for override in NAMES for word in ("-s", override)]
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    said = scene.rftd("submit", str(scene.write()), "--pull", *words, environ=nowhere)
    assert said.status == 4, said.err
    assert "the model Qwen/Tiny cannot be fetched" in said.err
    said = scene.rftd("submit", str(scene.write()), "--pull", "--dry-run", *words)
    assert said.status == 2
    assert "--pull fetches files" in said.err
    assert not hub.requests


@pytest.mark.parametrize("names", [{}, {"model": {"model_path": "/local/model"}}])
def test_a_file_without_names_asks_for_nothing(tmp_path: Path, names: dict[str, Any]) -> None:
    told: list[str] = []
    pull(names, hub_folder(str(tmp_path)), told.append, bars=False)
    assert told == ["nothing to fetch: the file names nothing on the Hugging Face hub"]


def test_nothing_is_fetched_beside_the_cache_of_another_machine(tmp_path: Path) -> None:
    theirs = HubFolder(folder=str(tmp_path), inode=1)
    with pytest.raises(UsageError, match="is not on this machine"):
        pull({"model": {"model_path": "Qwen/Tiny"}}, theirs, print, bars=False)
