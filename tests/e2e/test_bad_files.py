"""Experiments that cannot be: refused where they are handed in, with what, where, the value and a fix."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from synthetic.daemon.command_line import Said
from synthetic.daemon.scene import EXPERIMENT, SHORT, Scene

from rftd.daemon.http.views import experiments
from rftd.workers.models.tiny_model import make_tiny_model

pytestmark = pytest.mark.e2e
TASKSET = "buffer.explorer_input.taskset"
TRAIN = f"{TASKSET}.path"
ENGINE = "trainer.trainer_type=torch"
ARGUMENTS = "trainer.engine_args={}"


def refused(shared: Scene, *overrides: str, text: str = EXPERIMENT) -> Said:
    """What a person sees who hands it in; nothing of it is kept."""
    before = names(shared)
    shared.write(text)
    arguments = [word for override in overrides for word in ("-s", override)]
    said = shared.rftd("submit", "exp.yaml", *arguments)
    assert said.status == 2, said
    assert said.out == "", said
    assert "Traceback" not in said.err
    assert "fix:" in said.err
    assert names(shared) == before
    return said


def names(shared: Scene) -> list[str]:
    with shared.client() as client:
        return [each.id for each in client.ask(experiments.listed).value.items]


def test_a_malformed_file_is_shown_where_it_breaks(shared: Scene) -> None:
    said = refused(shared, text="project: [a\nname: b\n  c: d\n")
    assert "error[RFTD-CFG-002] not valid YAML" in said.err
    assert "--> exp.yaml:1:10" in said.err
    assert "1 | project: [a" in said.err


def test_an_unknown_field_comes_with_the_nearest_one(shared: Scene) -> None:
    said = refused(shared, text=EXPERIMENT.replace("batch_size:", "batch_sise:", 1))
    assert "error[RFTD-CFG-004] buffer.batch_sise: unknown field" in said.err
    assert "did you mean 'batch_size'?" in said.err


def test_a_contradiction_names_its_fields(shared: Scene) -> None:
    said = refused(shared, "algorithm.repeat_times=1")
    assert "error[RFTD-CFG-008] algorithm.repeat_times: is 1, but grpo compares" in said.err


def test_a_file_of_a_megabyte_is_no_experiment(shared: Scene) -> None:
    said = refused(shared, text=f"{EXPERIMENT}\n# {'x' * 1_100_000}\n")
    assert "error[RFTD-CFG-003] larger than 1,048,576 bytes" in said.err


def test_a_missing_model_is_named(shared: Scene) -> None:
    said = refused(shared, "trainer.trainer_type=torch", "trainer.engine_args={}", "model.model_path=./absent")
    assert f"error[RFTD-DAT-001] model.model_path: no such model folder: '{shared.folder / 'absent'}'" in said.err


@pytest.mark.parametrize("lost", ["model.safetensors", "tokenizer*"])
def test_a_model_folder_without_a_file_is_named(shared: Scene, tmp_path: Path, lost: str) -> None:
    for path in make_tiny_model(tmp_path / "odd", seed=1).glob(lost):
        path.unlink()
    model = f"model.model_path={tmp_path}/odd"
    said = refused(shared, ENGINE, ARGUMENTS, model)
    assert "error[RFTD-DAT-001] model.model_path: " in said.err
    assert lost.rstrip("*") in said.err
    shared.write()
    dry = shared.rftd("submit", "exp.yaml", "--dry-run", "-s", ENGINE, "-s", ARGUMENTS, "-s", model)
    assert (dry.status, dry.err) == (2, said.err), dry.err


def test_a_missing_taskset_is_named(shared: Scene) -> None:
    said = refused(shared, f"{TRAIN}=./absent.jsonl")
    told = f"taskset 'sums': there is no file or folder '{shared.folder / 'absent.jsonl'}'"
    assert f"error[RFTD-DAT-001] {TRAIN}: {told}" in said.err


@pytest.mark.parametrize(
    ("content", "field", "message"),
    [
        ("\n \n", "path", "taskset 'sums' has no rows"),
        ('{"question": "1+1=", "answer": "2"}\n{"quest\n', "path", "line is not JSON"),
        (
            '{"q": "1+1=", "answer": "2"}\n',
            "format.prompt_key",
            "row has no value under 'question'; its keys are ['answer', 'q']",
        ),
    ],
    ids=["empty", "malformed", "another_column"],
)
def test_a_taskset_without_tasks_is_refused(shared: Scene, content: str, field: str, message: str) -> None:
    path = shared.folder / "odd.jsonl"
    path.write_text(content)
    said = refused(shared, f"{TRAIN}=./odd.jsonl")
    assert f"error[RFTD-DAT-001] {TASKSET}.{field}: {message}" in said.err
    assert str(path) in said.err


def test_a_warm_up_dataset_is_looked_at_too(shared: Scene) -> None:
    (shared.folder / "odd.jsonl").write_text('{"question": "1+1="}\n')
    text = EXPERIMENT.replace("name: warmup\n        path: ./train.jsonl", "name: warmup\n        path: ./odd.jsonl")
    field = "stages[0].buffer.trainer_input.experience_buffer.format.response_key"
    assert f"error[RFTD-DAT-001] {field}: row has no value under 'answer'" in refused(shared, text=text).err


def test_the_api_says_the_same_as_the_command_line(shared: Scene) -> None:
    said = refused(shared, f"{TRAIN}=./absent.jsonl")
    shared.write()
    as_json = shared.rftd("submit", "exp.yaml", "-s", f"{TRAIN}=./absent.jsonl", "--json")
    (error,) = json.loads(as_json.err)["errors"]
    assert error["code"] == "RFTD-DAT-001"
    assert error["what"] in said.err
    assert error["fix"]


def test_a_file_that_is_not_there(shared: Scene) -> None:
    said = shared.rftd("submit", "absent.yaml")
    assert (said.status, said.out) == (2, "")
    assert "no such file" in said.err
    assert "absent.yaml" in said.err


def test_after_all_of_them_an_experiment_runs(shared: Scene) -> None:
    assert Path(shared.data.root).is_dir()
    shared.write()
    said = shared.rftd("submit", "exp.yaml", "--wait", *(word for each in SHORT for word in ("-s", each)))
    assert said.status == 0, said
    assert "sums  completed" in said.out
