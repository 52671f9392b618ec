"""`TrainRow`: a dataset row as the trainer's input: token ids, and a mask of the tokens to learn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from rftd.streams.events.step import EQUAL_PAIRS, ROW_ANSWERS_CUT, ROW_PROMPTS_CUT

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class TrainRow(msgspec.Struct, frozen=True, kw_only=True):
    """A sequence of T tokens for training; the first P are the prompt, and R = T - P >= 1 are the response."""

    tokens: NDArray[np.uint32]  # [T]
    """Token ids  # [T]"""
    prompt_tokens: int
    """Number of prompt tokens."""
    loss_mask: NDArray[np.uint8]  # [R]
    """1 for each response token to be learned, else 0  # [R]"""
    desirable: bool | None = None
    """Label of a row of `kto`; None without a label."""
    cut: str = ""
    """What was cut to fit the model: empty (nothing), `response` (its end), or `prompt` (then nothing of the row is
    learned).
    """


def fitted(
    prompt: Sequence[int], response: Sequence[int], *, max_model_len: int, mask: Sequence[int] | None = None
) -> TrainRow:
    """Builds a row from the ids of prompt and response (at least one token each), cut to `max_model_len` tokens
    together.

    `mask` marks the response tokens to learn; None: all. A too long response loses its end. A prompt without room for a
    response keeps its beginning and one response token with loss mask 0, so that a plan with the row can still be
    executed, and one long row does not end an experiment.
    """
    import numpy as np

    learned = np.ones(len(response), np.uint8) if mask is None else np.array(mask, np.uint8)
    cut = ""
    if len(prompt) >= max_model_len:
        prompt = prompt[: max_model_len - 1]
        # One token with mask 0: a sequence without a response has no place in a batch, and the plan names the row.
        response = response[:1]
        cut = "prompt"
        learned = np.zeros(1, np.uint8)
    elif len(prompt) + len(response) > max_model_len:
        response = response[: max_model_len - len(prompt)]
        cut = "response"
        learned = learned[: len(response)]
    return TrainRow(
        tokens=np.array([*prompt, *response], dtype=np.uint32), prompt_tokens=len(prompt), loss_mask=learned, cut=cut
    )


def row_faults(sequences: Sequence[TrainRow]) -> set[str]:
    """Returns the names of metrics counting faults of a row: cut prompt, cut answer, two equal answers."""
    cuts = {"prompt": ROW_PROMPTS_CUT, "response": ROW_ANSWERS_CUT}
    faults = {cuts[row.cut] for row in sequences if row.cut}
    if len(sequences) == 2 and sequences[0].tokens.tobytes() == sequences[1].tokens.tobytes():
        faults.add(EQUAL_PAIRS)
    return faults


def plain_prompt(prompt: str, *, system_prompt: str | None, reply_prefix: str | None) -> str:
    """Returns the text the model is to continue, without a chat template: system prompt, prompt, start of the reply."""
    return (f"{system_prompt}\n" if system_prompt else "") + prompt + (reply_prefix or "")
