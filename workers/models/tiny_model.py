"""The tiny model of the demo and of tests: a folder transformers loads offline, made in a fraction of a second."""

from __future__ import annotations

import string
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedTokenizerFast,
)
from transformers.utils.logging import disable_progress_bar

VOCABULARY_TOKENS = 128
"""Number of tokens in the vocabulary: special tokens, characters, and unused ones."""

PAD = "<pad>"
BOS = "<bos>"
EOS = "<eos>"
UNKNOWN = "<unk>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
SPECIALS = (PAD, BOS, EOS, UNKNOWN, *ROLES)

CHARACTERS = "\t\n\r " + string.digits + string.ascii_letters + string.punctuation
"""Characters with a token of their own."""

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '<|' + message.role + '|>' + message.content }}"
    "{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Chat template: a role's token before each message, and EOS after an assistant's."""


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Returns a tokenizer with one token per character; a role of the chat template and each special is one token too.

    transformers loads the tokenizer of any `qwen2` folder as Qwen2Tokenizer, whatever the folder says: so this is
    byte-level BPE without merges, with the same meaning there. Other characters are unknown.
    """
    characters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = tuple(characters.pre_tokenize_str(c)[0][0] for c in CHARACTERS)
    named = (*SPECIALS, *alphabet)
    tokens = (*named, *(f"<|reserved_{i}|>" for i in range(VOCABULARY_TOKENS - len(named))))
    assert len(tokens) == len(set(tokens)) == VOCABULARY_TOKENS
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = characters
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNKNOWN,
        additional_special_tokens=list(ROLES),
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def make_tiny_model(
    folder: Path,
    *,
    seed: int,
    hidden_size: int = 64,
    layers: int = 2,
    heads: int = 4,
    head_size: int | None = None,
    intermediate_size: int | None = None,
    max_positions: int = 2048,
) -> Path:
    """Writes a random Qwen2 and a character tokenizer into `folder`; by default about 134,000 parameters.

    With a `head_size` the model is a Qwen3, whose heads may have any size; without, heads share `hidden_size`. Equal
    arguments give equal weights. Returns `folder`.
    """
    tokenizer = make_tokenizer()
    ids = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = AutoConfig.for_model(
        "qwen2" if head_size is None else "qwen3",
        vocab_size=VOCABULARY_TOKENS,
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        intermediate_size=intermediate_size or hidden_size * 15 // 4,
        max_position_embeddings=max_positions,
        tie_word_embeddings=True,
        **({} if head_size is None else {"head_dim": head_size}),
        **ids,
    )
    # Forked: the caller's random state stays unchanged, and no CUDA device is touched.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    model.generation_config = GenerationConfig(**ids)  # type: ignore[no-untyped-call]
    folder.mkdir(parents=True, exist_ok=True)
    disable_progress_bar()  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
