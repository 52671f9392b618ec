"""An ordinary asynchronous run on torch, in real processes, one of which is killed: found again to the bit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from synthetic.daemon.scene import EXPERIMENT, Scene
from synthetic.daemon.torch_world import TORCH, torch_files

from rftd.workers.models.tiny_model import make_tiny_model

STEPS = 35


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A run of two stages whose trainer was killed in the second; its daemon has stopped."""
    scene = Scene(tmp_path_factory.mktemp("replay"))
    torch_files(scene.folder)
    with scene.host:
        name = scene.submit(EXPERIMENT, *TORCH, "buffer.total_steps=30")
        scene.until_step(name, 8)
        assert scene.kill("trainer", name)
        page = scene.until_ended(name)
        assert page.experiment.summary.state == "completed", page.experiment.summary
    yield scene


@pytest.mark.e2e
def test_every_digest_is_found_again(ended: Scene) -> None:
    said = ended.rftd("replay", "sums", "--check", "--json")
    assert said.status == 0, said
    answer = json.loads(said.out)
    assert (answer["steps"], answer["equal"], answer["from_version"], answer["drift"]) == (STEPS, STEPS, 0, [])
    assert {each["generation"] for each in answer["items"]} == {0, 1}
    assert answer["sha256_compared"] >= 5
    assert len({each["found"] for each in answer["items"]}) == STEPS
    later = json.loads(ended.rftd("replay", "sums", "--check", "--from-checkpoint", "--json").out)
    assert later["from_version"] > 5
    assert later["steps"] == later["equal"] == STEPS - later["from_version"]


@pytest.mark.e2e
def test_the_weights_of_any_step_can_be_had_again(ended: Scene) -> None:
    from safetensors.numpy import load_file

    said = ended.rftd("replay", "sums", "--to-step", "5", "--into", "again")
    assert said.status == 0, said
    again = load_file(ended.folder / "again" / "actor" / "huggingface" / "model.safetensors")
    (saved,) = ended.folder.rglob("warmup/global_step_5/actor/huggingface/model.safetensors")
    committed = load_file(saved)
    assert again.keys() == committed.keys()
    assert all((again[name] == committed[name]).all() for name in committed)
    assert ended.rftd("replay", "sums", "--to-step", "5", "--into", "again").status == 2


@pytest.mark.e2e
def test_another_model_or_none_is_refused_by_name(ended: Scene) -> None:
    model, aside = ended.folder / "model", ended.folder / "aside"
    model.rename(aside)
    try:
        said = ended.rftd("replay", "sums")
        assert said.status == 2
        assert str(model) in said.err
        assert "config.json is missing" in said.err
        make_tiny_model(model, seed=4, hidden_size=32, heads=2)
        said = ended.rftd("replay", "sums")
        assert said.status == 2
        assert str(model) in said.err
        assert "the experiment began with" in said.err
        assert ended.rftd("verify").status == 0, "the log can still be read"
    finally:
        shutil.rmtree(model)
        aside.rename(model)


@pytest.mark.e2e
def test_other_weights_than_were_recorded_are_found(ended: Scene, tmp_path: Path) -> None:
    (job,) = ended.folder.glob("checkpoints/**/rft")
    aside = tmp_path / "rft"
    shutil.copytree(job, aside)
    damaged = sorted(job.glob("global_step_*"), key=lambda path: int(path.name.rpartition("_")[2]))[-2]
    try:
        file = damaged / "actor" / "model.safetensors"
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
        said = ended.rftd("replay", "sums", "--check", "--from-checkpoint")
        assert said.status == 0, said
        assert "other bytes than were committed" in said.err, said
    finally:
        shutil.rmtree(job)
        shutil.move(aside, job)
