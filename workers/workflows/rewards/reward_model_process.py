"""The process of a reward model: lines with conversations in, a line with their scores, or the error, out.

Started by `reward_model`. Conversations are written by the tokenizer's chat template; without one, the messages before
the response and the response are the two texts of a pair.
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
    """A reward model and its tokenizer on a device, for scoring conversations in batches."""

    def __init__(self, path: str, device: str) -> None:
        """Raises ValueError, with a readable message, for a folder with another kind of model, or without weights."""
        # Standard error is the log of the worker that started this process.
        disable_progress_bar()  # type: ignore[no-untyped-call]
        self._tokenizer: Any = AutoTokenizer.from_pretrained(path, local_files_only=True)
        """Tokenizer of the model."""
        self._model, loaded = AutoModelForSequenceClassification.from_pretrained(
            path, local_files_only=True, use_safetensors=True, output_loading_info=True
        )
        if missing := sorted(loaded["missing_keys"]):
            raise ValueError(f"{path} has no weights for {', '.join(missing[:3])}: it is not a trained reward model")
        if self._tokenizer.pad_token_id is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        if self._model.config.pad_token_id is None:
            self._model.config.pad_token_id = self._tokenizer.pad_token_id
        self._tokenizer.padding_side = "right"
        self._model.eval().to(device)

    @torch.inference_mode()
    def scores(self, conversations: list[list[dict[str, Any]]]) -> list[float]:
        """Returns a score for each conversation. Raises ValueError for outputs other than finite scores."""
        inputs = self._encode(conversations).to(self._model.device)
        max_tokens = getattr(self._model.config, "max_position_embeddings", None)
        length = inputs["input_ids"].shape[1]
        if max_tokens is not None and length > max_tokens:
            raise ValueError(f"a conversation of {length} tokens is longer than the reward model's {max_tokens}")
        logits = self._model(**inputs).logits
        if logits.shape != (len(conversations), 1):
            shape = list(logits.shape)
            expected_shape = [len(conversations), 1]
            raise ValueError(
                f"the reward model returned outputs of shape {shape}, not {expected_shape}: one score each"
            )
        scores: list[float] = logits[:, 0].float().tolist()
        if wrong := [score for score in scores if not math.isfinite(score)]:
            raise ValueError(f"the reward model returned {wrong[0]}, which is not a finite score")
        return scores

    def _encode(self, conversations: list[list[dict[str, Any]]]) -> Any:
        """Returns the conversations as padded tensors."""
        if self._tokenizer.chat_template:
            with bounded():
                texts = [
                    self._tokenizer.apply_chat_template(conversation, tokenize=False) for conversation in conversations
                ]
            return self._tokenizer(texts, add_special_tokens=False, padding=True, return_tensors="pt")
        before = ["\n".join(message["content"] for message in conversation[:-1]) for conversation in conversations]
        return self._tokenizer(
            before, [conversation[-1]["content"] for conversation in conversations], padding=True, return_tensors="pt"
        )


def main() -> None:
    """Scores until the input ends; the model is loaded with the first line."""
    answers = sys.stdout
    # Text printed by libraries must not mix with the answers.
    sys.stdout = sys.stderr
    scorer: ModelScorer | None = None
    for line in sys.stdin:
        request = json.loads(line)
        reply: dict[str, Any]
        try:
            if scorer is None:
                scorer = ModelScorer(request["path"], request["device"])
            reply = {"scores": scorer.scores(request["conversations"])}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(reply) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
