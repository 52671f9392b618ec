"""Names on the hub: the snapshot of the daemon's own cache that they stand for, and what is said of one that lacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rftd.daemon.run.supervisor.hub_cache import HubCache, check_whole, with_snapshots
from rftd.ops.errors import DataError
from rftd.ops.hub_id import DATASET, MODEL, HubId

FIRST = "1" * 40
SECOND = "2" * 40
FILE: dict[str, Any] = {
    "name": "n",
    "model": {"model_path": "Qwen/Tiny", "critic_model_path": "gone/model"},
    "buffer": {"explorer_input": {"taskset": {"path": "openai/gsm8k@v1"}, "eval_tasksets": [{"path": "openai/gsm8k"}]}},
}


def fetch(root: Path, kind: str, name: str, commit: str, files: dict[str, str], *, ref: str = "main") -> Path:
    """Lays a snapshot out as `hf download` does: links to blobs."""
    folder = root / f"{kind}s--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / commit
    for number, (file, text) in enumerate(files.items()):
        blob = folder / "blobs" / f"{commit[:8]}{number}"
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_text(text)
        (snapshot / file).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / file).symlink_to(blob)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / ref).write_text(commit)
    return snapshot


@pytest.fixture
def cache(tmp_path: Path) -> HubCache:
    return HubCache.of({"HF_HOME": str(tmp_path)})


def test_names_become_the_snapshots_of_their_revisions(tmp_path: Path, cache: HubCache) -> None:
    model = fetch(tmp_path / "hub", MODEL, "Qwen/Tiny", FIRST, {"config.json": "{}"})
    old = fetch(tmp_path / "hub", DATASET, "openai/gsm8k", FIRST, {"main/train.jsonl": "{}"}, ref="v1")
    new = fetch(tmp_path / "hub", DATASET, "openai/gsm8k", SECOND, {"main/train.jsonl": "{}"})
    changed = with_snapshots(FILE, cache)
    assert changed["model"] == {"model_path": str(model), "critic_model_path": "gone/model"}
    given = changed["buffer"]["explorer_input"]
    assert (given["taskset"]["path"], given["eval_tasksets"][0]["path"]) == (str(old), str(new))
    several = {"buffer": {"explorer_input": {"taskset": {"path": ["/a.jsonl", "openai/gsm8k"]}}}}
    paths = with_snapshots(several, cache)["buffer"]["explorer_input"]["taskset"]["path"]
    assert paths == ["/a.jsonl", str(new)]
    assert FILE["model"]["model_path"] == "Qwen/Tiny"
    assert cache.snapshot(HubId("openai", "gsm8k", FIRST), DATASET) == old
    assert cache.snapshot(HubId("openai", "gsm8k", "3" * 40), DATASET) is None
    assert cache.snapshot(HubId("openai", "gsm8k"), MODEL) is None


@pytest.mark.parametrize(
    "service",
    [
        {"trainer": {"trainer_type": "tinker"}},
        {"model": {"model_path": "Qwen/Tiny", "tinker": {"enable": True}}},
        {"explorer": {"rollout_model": {"engine_type": "external"}}},
        {"stages": [{"trainer": {"trainer_type": "tinker"}}]},
    ],
)
def test_the_name_of_a_services_model_stays(tmp_path: Path, cache: HubCache, service: dict[str, Any]) -> None:
    fetch(tmp_path / "hub", MODEL, "Qwen/Tiny", FIRST, {"config.json": "{}"})
    assert with_snapshots({**FILE, **service}, cache)["model"]["model_path"] == "Qwen/Tiny"


@pytest.mark.parametrize("ref", ["", "../../../elsewhere", "g" * 40, FIRST * 10])
def test_a_ref_that_names_no_commit_leads_nowhere(tmp_path: Path, cache: HubCache, ref: str) -> None:
    fetch(tmp_path / "hub", MODEL, "Qwen/Tiny", FIRST, {"config.json": "{}"})
    (tmp_path / "hub" / "models--Qwen--Tiny" / "refs" / "main").write_text(ref)
    assert cache.snapshot(HubId("Qwen", "Tiny"), MODEL) is None


def test_half_a_snapshot_is_named_with_what_lacks(tmp_path: Path) -> None:
    index = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}})
    files = {"config.json": "{}", "model-1.safetensors": "w", "model.safetensors.index.json": index}
    snapshot = fetch(tmp_path, MODEL, "Qwen/Tiny", FIRST, files)
    with pytest.raises(DataError, match=r"model is not whole: model-2\.safetensors is not there"):
        check_whole(snapshot, MODEL)
    rows = fetch(tmp_path, DATASET, "openai/gsm8k", FIRST, {"train.jsonl": "{}", "test.jsonl": "{}"})
    check_whole(rows, DATASET)
    (rows / "train.jsonl").resolve().unlink()
    with pytest.raises(DataError, match=r"dataset is not whole: train\.jsonl is not there"):
        check_whole(rows, DATASET)


@pytest.mark.parametrize("text", ["gpt2", "/a/b", "a/b/c", "../b", "a/..", "a/b@", "a/b@../c", "https://a/b", "a/b c"])
def test_what_is_no_name_on_the_hub(text: str) -> None:
    assert HubId.parse(text) is None
