"""Draws tokens from logits and records them in responses, independent of how logits are computed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from transformers import PreTrainedTokenizerBase

from rftd.ops.errors import RolloutError
from rftd.workers.devices.pinned_transfer import to_device
from rftd.workers.engines.torch.rollout.adjust import Text
from rftd.workers.engines.torch.rollout.draw import Draw
from rftd.workers.engines.torch.rollout.network import Network
from rftd.workers.engines.torch.rollout.running import Finished, Running
from rftd.workers.generation.engine import Sampling


class StopTexts:
    """Finds stop texts in the drawn tokens of a response; decodes only if the last token could complete one."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """`tokenizer` decodes the drawn tokens."""
        self._tokenizer = tokenizer
        self._pieces: dict[int, str] = {}

    def ends(self, tokens: Sequence[int], stops: Sequence[str]) -> bool:
        """True if the last token completed one of `stops`."""
        if not any(self._could_end(tokens[-1], stop) for stop in stops):
            return False
        # A stop text spans at most four tokens a character: four bytes a character, one byte a token.
        tail = list(tokens[-(4 * max(map(len, stops)) + 8) :])
        text = self._decode(tail)
        before = self._decode(tail[:-1])
        return any(text.count(stop) > before.count(stop) for stop in stops)

    def _could_end(self, token: int, stop: str) -> bool:
        """True if the token's text can contain the last character of the stop text."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._decode([token])
        # A decoder may drop a leading space, and shows part of a character as U+FFFD.
        return stop[-1] in piece or stop[-1].isspace() or "\ufffd" in piece or not piece

    def _decode(self, tokens: list[int]) -> str:
        """Returns the text of tokens, special tokens included."""
        text = self._tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text


_IDLE = Sampling(temperature=0.0, max_tokens=1)
"""Sampling of empty rows in deterministic mode."""


class Responses:
    """Prepares the drawing for requests, and records drawn tokens."""

    def __init__(self, network: Network) -> None:
        """Draws for requests of `network`'s model."""
        self._network = network
        self._stop_texts = StopTexts(network.tokenizer)
        self._eos = to_device(np.array(sorted(network.eos), np.int64), network.device)
        self.tokens_total = 0

    def drawing(self, rows: Sequence[Running | None]) -> Draw:
        """Returns the drawing with one row for each request; None is a row without a request."""
        samplings = [_IDLE if r is None else r.request.sampling for r in rows]
        keys = [0 if r is None else r.key for r in rows]
        positions = [0 if r is None else len(r.tokens) for r in rows]
        texts: list[Text] = [((), ()) if r is None else (r.request.prompt, r.tokens) for r in rows]
        return Draw(samplings, keys, positions, eos=self._eos, device=self._network.device, texts=texts)

    def take(
        self, runnings: Sequence[Running | None], tokens: list[int], logprobs: list[float], processed: list[float]
    ) -> list[Finished]:
        """Appends each request's drawn token; returns the requests finished by it. `processed` are log-probabilities
        after filters and penalties.
        """
        done: list[Finished] = []
        eos = self._network.eos
        self.tokens_total += len(runnings) - runnings.count(None)
        for running, token, logprob, after in zip(runnings, tokens, logprobs, processed, strict=True):
            if running is None:
                continue
            sampling = running.request.sampling
            drawn = running.tokens
            drawn.append(token)
            running.logprobs.append(logprob)
            if sampling.processed_logprobs:
                running.processed.append(after)
            # Checked first: a token drawn from NaN is invalid, whether it ends the response or not.
            if logprob != logprob:  # NaN
                error = RolloutError(f"the model gave NaN at token {len(drawn) - 1} of {running.request.id}")
                done.append(Finished(running, error))
            elif (token in eos and not sampling.ignore_eos) or (sampling.stop and self._is_stopped(running)):
                done.append(Finished(running, running.generation("stop")))
            elif len(drawn) == running.limit:
                done.append(Finished(running, running.generation("length")))
        return done

    def _is_stopped(self, running: Running) -> bool:
        """True if the last token completed a stop text, after at least `min_tokens` tokens."""
        sampling = running.request.sampling
        return len(running.tokens) >= sampling.min_tokens and self._stop_texts.ends(running.tokens, sampling.stop)
