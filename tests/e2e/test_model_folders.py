"""Model folders as people have them, through a daemon and its workers: trained as transformers does, or refused."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from synthetic.daemon.scene import Scene
from synthetic.models import odd_folders
from synthetic.models.odd_folders import Change
from synthetic.until import poll
from transformers import AutoModelForCausalLM, AutoTokenizer

from rftd.streams.events.step import StepCompleted
from rftd.workers.models.tiny_model import make_tiny_model

ROWS = [{"question": f"{number} + {number + 7}", "answer": str(2 * number + 7)} for number in range(4)]
OWNER = 65534
ODD: dict[str, tuple[Change, ...]] = {
    "ends and halves": (odd_folders.half_precision, odd_folders.two_ends),
    "embeddings in two files": (odd_folders.more_embeddings_than_tokens, odd_folders.in_two_files),
    "tokens and positions": (
        odd_folders.brain_floats,
        odd_folders.a_token_without_embedding_that_no_text_has,
        odd_folders.positions_that_are_rotations,
        odd_folders.no_generation_settings,
    ),
    "settings": (odd_folders.settings_that_transformers_refuses,),
}
"""Folders, each with several oddities: a worker takes seconds to start."""
_WITHOUT_OVERRIDE = """
import ctypes, os, sys
for capability in (1, 2):  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
    assert ctypes.CDLL(None).prctl(24, capability, 0, 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""
"""A command line under which root has no more rights to others' files than another user."""


def experiment(model: Path, name: str) -> str:
    """One step of SFT on all rows."""
    return f"""
project: folders
name: {name}
checkpoint_root_dir: ./checkpoints
mode: train
model: {{model_path: {model}, max_prompt_tokens: 32, max_response_tokens: 32, max_model_len: 64}}
algorithm: {{algorithm_type: sft}}
trainer: {{trainer_type: torch}}
buffer:
  train_batch_size: {len(ROWS)}
  total_steps: 1
  trainer_input:
    experience_buffer:
      name: rows
      path: ./rows.jsonl
      format: {{prompt_type: plaintext, prompt_key: question, response_key: answer}}
"""


def loss_by_transformers(folder: Path) -> float:
    """The mean over the tokens of all answers, of the folder's own model in its own template."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    losses = []
    for row in ROWS:
        question = [{"role": "user", "content": row["question"]}]
        texts = [
            tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True),
            tokenizer.apply_chat_template([*question, {"role": "assistant", "content": row["answer"]}], tokenize=False),
        ]
        prompt, whole = (tokenizer.encode(text, add_special_tokens=False) for text in texts)
        end = tokenizer.eos_token_id
        whole = whole[: len(whole) - whole[::-1].index(end)]
        labels = torch.tensor([[-100] * len(prompt) + whole[len(prompt) :]])
        logits = model(input_ids=torch.tensor([whole])).logits[:, :-1].flatten(0, 1)
        losses.append(torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), reduction="none"))
    every = torch.cat(losses)
    return float((every.sum() / (every != 0).sum()).detach())


def write_rows(folder: Path) -> None:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))


def test_a_step_on_an_odd_folder_has_the_loss_of_transformers(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    write_rows(tmp_path)
    good = make_tiny_model(tmp_path / "good", seed=1)
    expected = {}
    with scene.host:
        for number, changes in enumerate(ODD.values()):
            model = Path(shutil.copytree(good, tmp_path / f"model-{number}"))
            for alter in changes:
                alter(model)
            scene.submit(experiment(model, f"odd-{number}"))
            expected[f"odd-{number}"] = loss_by_transformers(model)
        beyond = Path(shutil.copytree(good, tmp_path / "beyond"))
        odd_folders.tokens_without_embeddings(beyond)
        scene.write(experiment(beyond, "beyond"), "beyond.yaml")
        refused = scene.rftd("submit", "beyond.yaml")
        names = {}
        for name in expected:
            summary = scene.until_ended(name).experiment.summary
            assert summary.state == "completed"
            names[summary.id] = name
        steps = scene.events_by_experiment(StepCompleted)
    losses = {names[str(experiment)]: event.metrics["actor/sft_loss"] for experiment, event in steps}
    assert losses == pytest.approx(expected, rel=1e-5), "and none of the folder that is refused"
    assert refused.status == 2
    assert "'<|new|>', number 128" in refused.err and str(beyond) in refused.err


@pytest.mark.parametrize("ends", ["by itself", "killed"])
def test_the_memory_of_a_trainer_is_told_after_it_and_the_daemon_have_ended(tmp_path: Path, ends: str) -> None:
    """A worker's heartbeats are forgotten; what they said of its memory is in the event of its end."""
    scene = Scene(tmp_path)
    write_rows(tmp_path)
    steps = 2 if ends == "by itself" else 4000
    text = experiment(make_tiny_model(tmp_path / "model", seed=1), "told")

    def peak_bytes(name: str) -> int | None:
        page = scene.page(name)
        rows = [] if page is None else page.memory
        return next((row.peak_bytes for row in rows if row.role == "trainer"), None)

    with scene.host:
        name = scene.submit(text, f"buffer.total_steps={steps}")
        if ends == "killed":
            scene.until_step(name, 1)
            scene.kill("trainer", name)
        else:
            scene.until_ended(name)
        poll(lambda: peak_bytes(name) is not None, told=lambda: scene.page(name))
        before = peak_bytes(name)
        scene.kill("daemon", name)
        poll(lambda: peak_bytes(name) is not None)
        assert peak_bytes(name) == before
        assert "resident before, at most: " in scene.rftd("get", name).out
        if ends == "killed":
            scene.rftd("cancel", name)
            scene.until_ended(name)
    assert before is not None and before > 100 * 2**20, "torch alone is larger"


def closed(path: Path, mode: int) -> Callable[[], None]:
    """Gives a path to another user who shares it with nobody; what is returned undoes it."""
    before = path.stat()
    path.chmod(mode)
    os.chown(path, OWNER, OWNER)

    def opened() -> None:
        os.chown(path, before.st_uid, before.st_gid)
        path.chmod(before.st_mode)

    return opened


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_what_another_user_keeps_for_himself_is_refused_by_name(tmp_path: Path) -> None:
    """The daemon is a process without root's rights to others' files."""
    scene = Scene(tmp_path)
    write_rows(tmp_path)
    above = tmp_path / "above"
    above.mkdir()
    model = make_tiny_model(above / "model", seed=1)
    scene.write(experiment(model, "folders"))
    within = (sys.executable, "-P", "-c", _WITHOUT_OVERRIDE)
    process = scene.spawn("serve", "serve", "--port", "0", within=within)
    answers = {}
    try:
        poll(lambda: scene.rftd("ls").status == 0, told=lambda: (tmp_path / "serve.log").read_text())
        for path in (above, model, *sorted(model.iterdir()), tmp_path / "rows.jsonl"):
            opened = closed(path, 0o600 if path.is_file() else 0o700)
            answers[path] = scene.rftd("submit", "exp.yaml", "--dry-run")
            opened()
        fits = scene.rftd("submit", "exp.yaml", "--dry-run")
    finally:
        process.terminate()
        process.wait(timeout=60)
    for path, answer in answers.items():
        assert answer.status == 2, (path, answer)
        assert str(path) in answer.err, answer.err
        assert "cannot be read" in answer.err or "Permission denied" in answer.err, answer.err
    assert fits.status == 0, fits
