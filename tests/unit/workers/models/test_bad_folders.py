"""Model folders as people have them: trained exactly as they are, or refused by name before anything is trained."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from pathlib import Path

import pytest
from synthetic.models import odd_folders
from synthetic.models.odd_folders import Change
from transformers import AutoTokenizer

from rftd.daemon.config.loading import load_text
from rftd.daemon.run.supervisor.preflight import preflight
from rftd.ops.errors import DataError
from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.datasets.stage_tokenizer import dataset_tokenizer
from rftd.workers.datasets.taskset import Taskset
from rftd.workers.devices.discovery import find_host
from rftd.workers.engines.torch.rollout.engine import TorchRolloutEngine
from rftd.workers.engines.torch.trainer.engine import TorchTrainerEngine
from rftd.workers.models.model_folder import has_template
from rftd.workers.models.tiny_model import make_tiny_model

LONGEST = 64


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "good", seed=1)


def specification(folder: Path, scratch: Path, *, last: str = "8", trusted: bool = False) -> ExperimentSpec:
    """SFT of eight short rows, as a daemon accepts it; `last` is the answer of the last one."""
    rows = scratch / "rows.jsonl"
    answers = ["1", "2", "3", "4", "5", "6", "7", last]
    records = [{"question": f"{number} + 1", "answer": answer} for number, answer in enumerate(answers)]
    rows.write_text("".join(json.dumps(record) + "\n" for record in records))
    text = f"""
project: p
name: n
checkpoint_root_dir: {scratch}/checkpoints
mode: train
model:
  model_path: {folder}
  trust_remote_code: {str(trusted).lower()}
  max_prompt_tokens: 32
  max_response_tokens: 32
  max_model_len: {LONGEST}
algorithm: {{algorithm_type: sft}}
trainer: {{trainer_type: torch}}
buffer:
  train_batch_size: 4
  total_steps: 2
  trainer_input:
    experience_buffer:
      name: rows
      path: {rows}
      format: {{prompt_type: plaintext, prompt_key: question, response_key: answer}}
"""
    host = find_host()
    return preflight(load_text(text, "x.yaml", environ={}, cwd=scratch, host=host).spec, host)


def begun(folder: Path, scratch: Path) -> list[int]:
    """The token ids of the first row, once a trainer has opened the model."""
    spec = specification(folder, scratch)
    (stage,) = spec.stages
    assert stage.dataset is not None
    tokenizer = dataset_tokenizer(stage)
    with Taskset.open(stage.dataset) as rows:
        (row,) = rows.train_rows(0, tokenizer=tokenizer, max_model_len=LONGEST)
    engine = TorchTrainerEngine(threads=1)
    engine.open(spec, str(folder))
    engine.close()
    return [int(token) for token in row.tokens]


@pytest.mark.parametrize(
    "altered",
    [
        odd_folders.two_ends,
        odd_folders.settings_that_transformers_refuses,
        odd_folders.a_token_without_embedding_that_no_text_has,
        odd_folders.more_embeddings_than_tokens,
        odd_folders.positions_that_are_rotations,
        odd_folders.half_precision,
        odd_folders.brain_floats,
        odd_folders.no_generation_settings,
        odd_folders.in_two_files,
        odd_folders.vocabulary_and_merges,
        odd_folders.code_of_a_class_that_transformers_has,
    ],
)
def test_what_is_odd_and_sound_is_trained_as_the_model_reads_it(good: Path, tmp_path: Path, altered: Change) -> None:
    folder = Path(shutil.copytree(good, tmp_path / "model"))
    altered(folder)
    inner = AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "user", "content": "0 + 1"}, {"role": "assistant", "content": "1"}]
    text = inner.apply_chat_template(messages, tokenize=False)
    assert begun(folder, tmp_path) == inner.encode(text, add_special_tokens=False)


@pytest.mark.parametrize(
    ("altered", "words"),
    [
        (odd_folders.no_config, "no model in"),
        (odd_folders.no_tokenizer, "holds no tokenizer"),
        (odd_folders.no_weights, r"neither model\.safetensors nor model\.safetensors\.index\.json"),
        (odd_folders.weights_by_another_name, r"only consolidated\.safetensors"),
        (odd_folders.torn_weights, "weights cannot be read: a tensor lies at"),
        (odd_folders.one_file_of_two, r"model-00001-of-\d+\.safetensors"),
        (odd_folders.an_index_of_nothing, r"model\.safetensors\.index\.json cannot be read"),
        (odd_folders.an_empty_file_of_weights, "weights cannot be read: .*empty file"),
        (odd_folders.malformed_generation_settings, "generation_config.json is malformed"),
        (odd_folders.settings_that_cannot_be_read, "generation_config.json is malformed: .*Is a directory"),
        (odd_folders.learnt_positions, "has learnt 16 positions, and texts may have 64 tokens"),
        (odd_folders.another_vocabulary, r"names 100 tokens \(vocab_size\), and .*embed_tokens.weight has 128 rows"),
    ],
)
def test_what_lacks_a_file_is_refused_before_a_worker_starts(
    good: Path, tmp_path: Path, altered: Change, words: str
) -> None:
    folder = Path(shutil.copytree(good, tmp_path / "model"))
    altered(folder)
    with pytest.raises(DataError, match=words) as caught:
        specification(folder, tmp_path)
    assert str(folder) in str(caught.value)
    assert caught.value.field in ("model.model_path", "model.max_model_len")


@pytest.mark.parametrize(
    ("altered", "words"),
    [
        (odd_folders.settings_of_a_tokenizer_alone, "no text becomes a token"),
        (odd_folders.vocabulary_without_merges, "no tokenizer can be read from the model folder: .*merges"),
        (odd_folders.torn_pieces, "no text becomes a token"),
        (odd_folders.torn_tokenizer, "no tokenizer can be read from the model folder: JSONDecodeError"),
        (odd_folders.torn_settings_of_a_tokenizer, "no tokenizer can be read from the model folder: JSONDecodeError"),
        (
            odd_folders.tokenizer_that_is_code,
            r"(?s)no tokenizer can be read.*fix: write model\.trust_remote_code: true",
        ),
        (odd_folders.model_that_is_code, r"(?s)is a OwnForCausalLM, .*fix: write model\.trust_remote_code: true"),
    ],
)
def test_files_that_make_no_tokenizer_or_model_are_refused_before_a_worker_starts(
    good: Path, tmp_path: Path, altered: Change, words: str
) -> None:
    folder = Path(shutil.copytree(good, tmp_path / "model"))
    altered(folder)
    with pytest.raises(DataError, match=words) as caught:
        specification(folder, tmp_path)
    assert str(folder) in str(caught.value)
    assert caught.value.field == "model.model_path"


@pytest.mark.parametrize(
    ("altered", "words"),
    [
        (odd_folders.code_of_a_model_without_its_file, r"config\.json names missing code: modeling_own\.py"),
        (odd_folders.code_of_a_tokenizer_without_its_file, r"tokenizer_config\.json names .*: tokenization_own\.py"),
    ],
)
def test_code_that_may_be_run_and_is_not_there_is_refused(
    good: Path, tmp_path: Path, altered: Change, words: str
) -> None:
    folder = Path(shutil.copytree(good, tmp_path / "model"))
    altered(folder)
    with pytest.raises(DataError, match=words) as caught:
        specification(folder, tmp_path, trusted=True)
    assert caught.value.field == "model.model_path"


@pytest.mark.parametrize("altered", [odd_folders.tokenizer_that_is_code, odd_folders.model_that_is_code])
def test_code_that_may_be_run_is_left_to_workers(good: Path, tmp_path: Path, altered: Change) -> None:
    folder = Path(shutil.copytree(good, tmp_path / "model"))
    altered(folder)
    assert specification(folder, tmp_path, trusted=True).stages


@pytest.mark.parametrize(
    ("altered", "words"),
    [
        (odd_folders.tokens_without_embeddings, r"a text has the token '<\|new\|>', number 128"),
        (odd_folders.an_end_without_embedding, r"ends a text with the token '<\|stop\|>', number 128"),
    ],
)
@pytest.mark.parametrize("trains", ["rows", "rollouts"])
def test_a_token_without_an_embedding_is_refused_before_a_worker_starts(
    good: Path, tmp_path: Path, altered: Change, words: str, trains: str
) -> None:
    folder = Path(shutil.copytree(good, tmp_path / "model"))
    altered(folder)
    with pytest.raises(DataError, match=f"{words}, and the model has 128 tokens, 0 to 127") as caught:
        if trains == "rows":
            specification(folder, tmp_path)
        else:
            tasks(folder, tmp_path, "math_workflow", "plaintext")
    assert str(folder) in str(caught.value)
    assert caught.value.field == "model.model_path"


def test_a_token_without_an_embedding_in_one_row_of_many_is_refused(good: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(good, tmp_path / "model"))
    odd_folders.a_token_without_embedding_that_no_text_has(folder)
    with pytest.raises(DataError, match=r"'<\|padding\|>', number 128") as caught:
        specification(folder, tmp_path, last="<|padding|>")
    assert "rows.jsonl:8" in str(caught.value), "the line is named"


def test_code_of_a_folder_is_not_run_for_a_look_at_its_tokens(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker runs it, in a process of its own; and a tokenizer that fits is not opened at all."""
    monkeypatch.setattr(sys, "executable", "/nobody/starts/this")
    assert specification(good, tmp_path).stages
    folder = Path(shutil.copytree(good, tmp_path / "model"))
    odd_folders.tokens_without_embeddings(folder)
    assert specification(folder, tmp_path, trusted=True).stages


def test_weights_that_are_no_numbers_are_named_by_who_opens_them(good: Path, tmp_path: Path) -> None:
    """As they are read, so that no first loss is blamed on something else. A daemon reads no weights."""
    folder = Path(shutil.copytree(good, tmp_path / "model"))
    odd_folders.weights_that_are_no_numbers(folder)
    spec = specification(folder, tmp_path)
    words = r"'model\.layers\.0\.self_attn\.q_proj\.weight' of the model has 1 of \d+ values that are NaN or infinite"
    trainer = TorchTrainerEngine(threads=1)
    with pytest.raises(DataError, match=words) as caught:
        trainer.open(spec, str(folder))
    assert caught.value.where == str(folder)
    with pytest.raises(DataError, match=words) as caught:
        asyncio.run(TorchRolloutEngine.open(str(folder), slots=1, max_model_len=LONGEST, threads=1))
    assert caught.value.where == str(folder)


def tasks(folder: Path, scratch: Path, workflow: str, prompt_type: str, *overrides: str) -> ExperimentSpec:
    """GRPO on four sums, as a daemon accepts it."""
    rows = scratch / "tasks.jsonl"
    rows.write_text("".join(json.dumps({"question": f"{i} + 1", "answer": str(i + 1)}) + "\n" for i in range(4)))
    text = f"""
project: p
name: n
checkpoint_root_dir: {scratch}/checkpoints
model: {{model_path: {folder}, max_prompt_tokens: 32, max_response_tokens: 32, max_model_len: {LONGEST}}}
algorithm: {{algorithm_type: grpo, repeat_times: 2}}
buffer:
  batch_size: 2
  total_steps: 2
  explorer_input:
    default_workflow_type: {workflow}
    default_reward_fn_type: math_reward
    taskset:
      path: {rows}
      format: {{prompt_type: {prompt_type}, prompt_key: question, response_key: answer}}
"""
    host = find_host()
    return preflight(load_text(text, "x.yaml", overrides=overrides, environ={}, cwd=scratch, host=host).spec, host)


def test_files_of_an_auxiliary_model_that_make_no_tokenizer_are_refused(good: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(good, tmp_path / "judge"))
    judge = f"explorer.auxiliary_models=[{{model_path: {folder}, engine_type: torch}}]"
    assert tasks(good, tmp_path, "simple_workflow", "plaintext", judge).stages
    odd_folders.torn_pieces(folder)
    with pytest.raises(DataError, match="no text becomes a token") as caught:
        tasks(good, tmp_path, "simple_workflow", "plaintext", judge)
    assert caught.value.field == "explorer.auxiliary_models[0].model_path"


@pytest.mark.parametrize(
    ("workflow", "prompt_type"),
    [("simple_workflow", "plaintext"), ("math_workflow", "raw"), ("math_workflow", "plaintext")],
)
def test_tasks_that_ask_in_a_template_are_refused_of_a_model_without_one(
    good: Path, tmp_path: Path, workflow: str, prompt_type: str
) -> None:
    folder = Path(shutil.copytree(good, tmp_path / "model"))
    assert tasks(folder, tmp_path, workflow, prompt_type).stages
    odd_folders.no_template(folder)
    with pytest.raises(DataError, match="the model has no chat template") as caught:
        tasks(folder, tmp_path, workflow, prompt_type)
    assert caught.value.field == "buffer.explorer_input.taskset.format.prompt_type"
    assert str(folder) in str(caught.value) and "prompt_type: raw" in str(caught.value.fix)
    template = "model.custom_chat_template='{% for m in messages %}{{ m.content }}{% endfor %}'"
    assert tasks(folder, tmp_path, workflow, prompt_type, template).stages


def test_texts_that_are_asked_as_they_stand_need_no_template(good: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(good, tmp_path / "model"))
    odd_folders.no_template(folder)
    assert tasks(folder, tmp_path, "simple_workflow", "raw").stages


def test_rows_that_are_trained_in_a_template_are_refused_of_a_model_without_one(good: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(good, tmp_path / "model"))
    odd_folders.no_template(folder)
    with pytest.raises(DataError, match="the model has no chat template") as caught:
        specification(folder, tmp_path)
    assert caught.value.field == "buffer.trainer_input.experience_buffer.format.prompt_type"
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("kept", ["tokenizer_config.json", "additional_chat_templates", "malformed"])
def test_a_template_in_any_of_its_files_is_one(good: Path, tmp_path: Path, kept: str) -> None:
    """As transformers finds it; of a file that cannot be read the worker has more to say."""
    folder = Path(shutil.copytree(good, tmp_path / "model"))
    template = (folder / "chat_template.jinja").read_text()
    odd_folders.no_template(folder)
    if kept == "additional_chat_templates":
        (folder / kept).mkdir()
        (folder / kept / "default.jinja").write_text(template)
    elif kept == "malformed":
        (folder / "tokenizer_config.json").write_text("{")
    else:
        odd_folders.change(folder, kept, chat_template=[{"name": "default", "template": template}])
    assert has_template(folder)
    if kept != "malformed":
        assert begun(folder, tmp_path) == begun(good, tmp_path)
