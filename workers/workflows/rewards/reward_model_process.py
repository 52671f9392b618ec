"""The process of a reward model: lines with conversations in, a line with a score for each, or the error, out.

Started by `reward_model`. Conversations are written by the tokenizer's chat template; without one the messages before
the response, and the response, are the two texts of a pair.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from rftd.workers.datasets.template_bound import bounded


class ModelScorer:
    """A model and its tokenizer on a device."""

    def __init__(self, path: str, device: str) -> None:
        """Raises ValueError, in words, if the folder holds another kind of model, or weights are missing from it."""
        # Standard error is the log of the worker that started this process.
        disable_progress_bar()  # type: ignore[no-untyped-call]
        self._tokenizer: Any = AutoTokenizer.from_pretrained(path, local_files_only=True)
        self._model, loaded = AutoModelForSequenceClassification.from_pretrained(
            path, local_files_only=True, use_safetensors=True, output_loading_info=True
        )
        if missing := sorted(loaded["missing_keys"]):
            raise ValueError(f"{path} has no weights for {', '.join(missing[:3])}: it is no trained reward model")
        if self._tokenizer.pad_token_id is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        if self._model.config.pad_token_id is None:
            self._model.config.pad_token_id = self._tokenizer.pad_token_id
        self._tokenizer.padding_side = "right"
        self._model.eval().to(device)

    @torch.inference_mode()
    def scores(self, conversations: list[list[dict[str, Any]]]) -> list[float]:
        """A score for each conversation. Raises ValueError for outputs that are no scores."""
        inputs = self._encoded(conversations).to(self._model.device)
        most = getattr(self._model.config, "max_position_embeddings", None)
        length = inputs["input_ids"].shape[1]
        if most is not None and length > most:
            raise ValueError(f"a conversation of {length} tokens is longer than the reward model's {most}")
        logits = self._model(**inputs).logits
        if logits.shape != (len(conversations), 1):
            given = list(logits.shape)
            wanted = [len(conversations), 1]
            raise ValueError(f"the reward model gave outputs of shape {given}, not {wanted}: one score each")
        scores: list[float] = logits[:, 0].float().tolist()
        if wrong := [score for score in scores if not math.isfinite(score)]:
            raise ValueError(f"the reward model gave {wrong[0]}, no finite score")
        return scores

    def _encoded(self, conversations: list[list[dict[str, Any]]]) -> Any:
        if self._tokenizer.chat_template:
            with bounded():
                texts = [self._tokenizer.apply_chat_template(each, tokenize=False) for each in conversations]
            return self._tokenizer(texts, add_special_tokens=False, padding=True, return_tensors="pt")
        before = ["\n".join(message["content"] for message in each[:-1]) for each in conversations]
        return self._tokenizer(
            before, [each[-1]["content"] for each in conversations], padding=True, return_tensors="pt"
        )


def main() -> None:
    """Scores until the input ends; the model is loaded with the first line."""
    answers = sys.stdout
    # What libraries print is no answer.
    sys.stdout = sys.stderr
    scorer: ModelScorer | None = None
    for line in sys.stdin:
        asked = json.loads(line)
        given: dict[str, Any]
        try:
            if scorer is None:
                scorer = ModelScorer(asked["path"], asked["device"])
            given = {"scores": scorer.scores(asked["conversations"])}
        except Exception as error:
            given = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(given) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
