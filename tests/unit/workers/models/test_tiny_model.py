"""The demo's model folder: what transformers makes of it."""

from __future__ import annotations

import string
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rftd.workers.models.tiny_model import make_tiny_model, make_tokenizer


def test_loads_offline_and_has_the_promised_size(tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "m", seed=1)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "m", local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "m", local_files_only=True)
    assert 130_000 <= sum(p.numel() for p in model.parameters()) <= 138_000
    assert len(tokenizer) == model.config.vocab_size == 128
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert None not in (tokenizer.bos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id)


def test_every_printable_character_is_one_token(tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "m", seed=1)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "m", local_files_only=True)
    text = "".join(c for c in string.printable if c not in "\x0b\x0c")
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) == len(text)
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids) == text
    # Qwen2Tokenizer drops what it does not know; the tokenizer itself says <unk>.
    assert tokenizer.encode("漢", add_special_tokens=False) == []
    assert set(make_tokenizer().encode("漢", add_special_tokens=False)) == {tokenizer.unk_token_id}


def test_chat_template_ends_with_the_role_of_the_answer(tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "m", seed=1)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "m", local_files_only=True)
    question = [{"role": "user", "content": "12+3="}]
    ids = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_dict=False)
    assert tokenizer.decode(ids) == "<bos><|user|>12+3=<|assistant|>"
    assert len(ids) == 8
    full = tokenizer.apply_chat_template([*question, {"role": "assistant", "content": "15"}], return_dict=False)
    assert full[: len(ids)] == ids
    assert full[-1] == tokenizer.eos_token_id


def test_weights_are_a_function_of_the_seed(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    one, two, other = (
        AutoModelForCausalLM.from_pretrained(make_tiny_model(tmp_path / name, seed=seed)).state_dict()
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one[k], two[k]) for k in one)
    assert not all(torch.equal(one[k], other[k]) for k in one)
