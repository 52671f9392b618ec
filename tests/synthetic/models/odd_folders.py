"""Ways in which the model folders of people are odd, each a change of a folder that is as transformers saves it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config

from rftd.workers.models.tiny_model import make_tokenizer

Change = Callable[[Path], None]


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


def an_end_without_embedding(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"eos_token": "<|stop|>"})
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
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)


def no_tokenizer(folder: Path) -> None:
    for path in [*folder.glob("*token*"), folder / "chat_template.jinja"]:
        path.unlink(missing_ok=True)


def settings_of_a_tokenizer_alone(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def vocabulary_and_merges(folder: Path) -> None:
    """The files of tokenizers before tokenizer.json, of the same tokens."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "vocab.json").write_text(json.dumps(tokenizer["vocab"]))
    merges = (" ".join(pair) for pair in tokenizer["merges"])
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")
    settings_of_a_tokenizer_alone(folder)


def vocabulary_without_merges(folder: Path) -> None:
    vocabulary_and_merges(folder)
    (folder / "merges.txt").unlink()


def torn_pieces(folder: Path) -> None:
    settings_of_a_tokenizer_alone(folder)
    (folder / "spiece.model").write_bytes(b"torn")


def torn_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")


def torn_settings_of_a_tokenizer(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text("{")


def tokenizer_that_is_code(folder: Path) -> None:
    """Its class is in a file of the folder, and there is no other."""
    settings_of_a_tokenizer_alone(folder)
    code = {"AutoTokenizer": ["tokenization_own.OwnTokenizer", None]}
    change(folder, "tokenizer_config.json", tokenizer_class="OwnTokenizer", auto_map=code)
    (folder / "tokenization_own.py").write_text("class OwnTokenizer: ...\n")


def model_that_is_code(folder: Path) -> None:
    """Its type is one of transformers', its class is not."""
    code = {"AutoConfig": "configuration_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}
    change(folder, "config.json", architectures=["OwnForCausalLM"], auto_map=code)
    (folder / "configuration_own.py").write_text("class OwnConfig: ...\n")
    (folder / "modeling_own.py").write_text("class OwnForCausalLM: ...\n")


def code_of_a_class_that_transformers_has(folder: Path) -> None:
    """As the folders of many published models are."""
    model_that_is_code(folder)
    change(folder, "config.json", architectures=["Qwen2ForCausalLM"])


def code_of_a_model_without_its_file(folder: Path) -> None:
    model_that_is_code(folder)
    (folder / "modeling_own.py").unlink()


def code_of_a_tokenizer_without_its_file(folder: Path) -> None:
    tokenizer_that_is_code(folder)
    (folder / "tokenization_own.py").unlink()


def weights_that_are_no_numbers(folder: Path) -> None:
    """One of many is not."""
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.0.self_attn.q_proj.weight"][0, 0] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


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
