"""Model folders as people have them: trained exactly as they are, or refused by name before anything is trained."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from rftd.daemon.config.issue import ConfigErrors
from rftd.daemon.config.loading import load_text
from rftd.daemon.supervisor.preflight import preflight
from rftd.ops.errors import DataError, RftdError
from rftd.streams.spec import ExperimentSpec
from rftd.workers.devices.discovery import find_host
from rftd.workers.models.tiny_model import make_tiny_model, make_tokenizer
from rftd.workers.tasksets.stage_tokenizer import dataset_tokenizer
from rftd.workers.tasksets.taskset import Taskset
from rftd.workers.training.engines.torch.engine import TorchTrainerEngine

Change = Callable[[Path], None]
LONGEST = 64


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "good", seed=1)


def change(folder: Path, name: str, **settings: object) -> None:
    """Sets keys of a JSON file of the folder."""
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def two_ends(folder: Path) -> None:
    change(folder, "generation_config.json", eos_token_id=[2, 5])


def settings_that_transformers_refuses(folder: Path) -> None:
    change(folder, "generation_config.json", temperature=0.6, top_p=0.9, do_sample=False)


def no_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink(missing_ok=True)


def tokens_without_embeddings(folder: Path) -> None:
    """The template has one of them in every text."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<|new|>"], special_tokens=True)
    tokenizer.chat_template = "<|new|>" + tokenizer.chat_template
    tokenizer.save_pretrained(folder)


def a_token_without_embedding_that_no_text_has(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<|padding|>"], special_tokens=True)
    tokenizer.save_pretrained(folder)


def more_embeddings_than_tokens(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(192)
    model.save_pretrained(folder)


def positions_that_are_rotations(folder: Path) -> None:
    change(folder, "config.json", max_position_embeddings=16)


def learnt_positions(folder: Path) -> None:
    shutil.rmtree(folder)
    config = GPT2Config(vocab_size=128, n_embd=32, n_layer=1, n_head=2, n_positions=16, bos_token_id=1, eos_token_id=2)
    GPT2LMHeadModel(config).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)


def no_tokenizer(folder: Path) -> None:
    for path in [*folder.glob("*token*"), folder / "chat_template.jinja"]:
        path.unlink(missing_ok=True)


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def in_two_files(folder: Path) -> None:
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder, max_shard_size="100KB")
    (folder / "model.safetensors").unlink(missing_ok=True)


def one_file_of_two(folder: Path) -> None:
    in_two_files(folder)
    min(folder.glob("model-*.safetensors")).unlink()


def an_index_of_nothing(folder: Path) -> None:
    in_two_files(folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": []}')


def weights_by_another_name(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "consolidated.safetensors")


def an_empty_file_of_weights(folder: Path) -> None:
    """As a download leaves it that has not begun."""
    (folder / "model.safetensors").write_bytes(b"")


def settings_that_cannot_be_read(folder: Path) -> None:
    """As without rights, which root has all the same."""
    (folder / "generation_config.json").unlink()
    (folder / "generation_config.json").mkdir()


def torn_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])


def half_precision(folder: Path) -> None:
    AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16).save_pretrained(folder)


def brain_floats(folder: Path) -> None:
    AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(folder)


def no_generation_settings(folder: Path) -> None:
    (folder / "generation_config.json").unlink()


def another_vocabulary(folder: Path) -> None:
    change(folder, "config.json", vocab_size=100)


def malformed_generation_settings(folder: Path) -> None:
    (folder / "generation_config.json").write_text("[]")


def specification(folder: Path, scratch: Path) -> ExperimentSpec:
    """SFT of eight short rows, as a daemon accepts it."""
    rows = scratch / "rows.jsonl"
    rows.write_text("".join(json.dumps({"question": f"{i} + 1", "answer": str(i + 1)}) + "\n" for i in range(8)))
    text = f"""
project: p
name: n
checkpoint_root_dir: {scratch}/checkpoints
mode: train
model: {{model_path: {folder}, max_prompt_tokens: 32, max_response_tokens: 32, max_model_len: {LONGEST}}}
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
        two_ends,
        settings_that_transformers_refuses,
        a_token_without_embedding_that_no_text_has,
        more_embeddings_than_tokens,
        positions_that_are_rotations,
        half_precision,
        brain_floats,
        no_generation_settings,
        in_two_files,
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
        (no_config, "no model in"),
        (no_tokenizer, "holds no tokenizer"),
        (no_weights, r"neither model\.safetensors nor model\.safetensors\.index\.json"),
        (weights_by_another_name, r"only consolidated\.safetensors"),
        (torn_weights, "weights cannot be read: a tensor lies at"),
        (one_file_of_two, r"model-00001-of-\d+\.safetensors"),
        (an_index_of_nothing, r"model\.safetensors\.index\.json cannot be read"),
        (an_empty_file_of_weights, "weights cannot be read: .*empty file"),
        (malformed_generation_settings, "generation_config.json is malformed"),
        (settings_that_cannot_be_read, "generation_config.json is malformed: .*Is a directory"),
        (learnt_positions, "has learnt 16 positions, and texts may have 64 tokens"),
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
        (no_template, "the model has no chat template"),
        (tokens_without_embeddings, r"'<\|new\|>', number 128, and the model has 128 tokens"),
        (another_vocabulary, "cannot be read: RuntimeError"),
    ],
)
def test_what_only_a_worker_can_know_is_refused_by_name_as_well(
    good: Path, tmp_path: Path, altered: Change, words: str
) -> None:
    folder = Path(shutil.copytree(good, tmp_path / "model"))
    altered(folder)
    with pytest.raises((RftdError, ConfigErrors), match=words) as caught:
        begun(folder, tmp_path)
    assert str(folder) in str(caught.value)
