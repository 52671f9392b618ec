"""Answers of transformers' own model, template and greedy `generate`, for benches that compare them with a run's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

SYSTEM: Final = "You add. Reply with the sum only."
FORM: Final = f"{{prompt_type: plaintext, prompt_key: question, response_key: answer, system_prompt: {SYSTEM}}}"
MOST_TOKENS: Final = 12


class GreedyAnswer(NamedTuple):
    """One answer."""

    text: str
    tokens: int
    ended: bool
    """True if the model ended it."""


def greedy_answers(folder: Path, rows: Sequence[Mapping[str, str]]) -> Iterator[GreedyAnswer]:
    """The answers to the questions, one row at a time."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ends = model.generation_config.eos_token_id
    for row in rows:
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": row["question"]}]
        prompt = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        with torch.inference_mode():
            sequence = model.generate(**prompt, max_new_tokens=MOST_TOKENS, do_sample=False)
        answer = sequence[0, prompt["input_ids"].shape[1] :].tolist()
        text = tokenizer.decode(answer, skip_special_tokens=True)
        yield GreedyAnswer(text, len(answer), answer[-1] in (ends if isinstance(ends, list) else [ends]))
