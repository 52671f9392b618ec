"""`rftd submit --pull`: what the daemon's cache of the hub lacks is fetched by the client, and by nobody else."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest
from synthetic.daemon.scene import EXPERIMENT, SHORT, Scene
from synthetic.servers.hub_stand_in import COMMIT, HubStandIn

from rftd.daemon.http.client.pulling import pull
from rftd.daemon.http.views.hub import HubFolder, hub_folder
from rftd.ops.errors import UsageError
from rftd.workers.models.tiny_model import make_tiny_model

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
