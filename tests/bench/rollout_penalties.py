"""Milliseconds that one step of drawing takes, with and without penalties, over a vocabulary of usual size.

Each pair draws a step of rows without any change, then one with a repetition penalty, a presence penalty and a bias in
every row; pairs are interleaved, medians count. No model is run.

    python -P tests/bench/rollout_penalties.py [--rows 64] [--vocabulary 32000] [--pairs 40] [--threads 1]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))

from figures import median_of, read_options, tell

from rftd.workers.engines.torch.rollout.draw import Draw
from rftd.workers.engines.torch.rollout.noise import key_of
from rftd.workers.generation.engine import Sampling

PROMPT_TOKENS = 200


def drawing(rows: int, vocabulary: int, **settings: object) -> Draw:
    """The drawing of rows with these settings, each after a prompt of its own."""
    rng = np.random.default_rng(0)
    samplings = [Sampling(max_tokens=1000, seed=row, **settings) for row in range(rows)]  # type: ignore[arg-type]
    texts = [(rng.integers(0, vocabulary, PROMPT_TOKENS).tolist(), []) for _ in range(rows)]
    keys = [key_of(sampling.seed) for sampling in samplings]
    no_end = torch.tensor([], dtype=torch.long)
    return Draw(samplings, keys, [0] * rows, eos=no_end, device=torch.device("cpu"), texts=texts)


def milliseconds(draw: Draw, logits: torch.Tensor) -> float:
    """The time of one step."""
    begin = time.perf_counter()
    draw(logits)
    return 1e3 * (time.perf_counter() - begin)


def main() -> None:
    asked = read_options(__doc__, rows=64, vocabulary=32_000, pairs=40, threads=1)
    torch.set_num_threads(asked.threads)
    usual = drawing(asked.rows, asked.vocabulary)
    changed = drawing(
        asked.rows, asked.vocabulary, repetition_penalty=1.1, presence_penalty=0.5, logit_bias=((7, 1.0),)
    )
    logits = torch.randn(asked.rows, asked.vocabulary, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        pairs = [(milliseconds(usual, logits), milliseconds(changed, logits)) for _ in range(asked.pairs + 3)][3:]
    tell(
        {
            "rows": asked.rows,
            "vocabulary": asked.vocabulary,
            "pairs": asked.pairs,
            "usual_ms": median_of((pair[0] for pair in pairs), 3),
            "penalties_ms": median_of((pair[1] for pair in pairs), 3),
            "ratio": median_of((pair[1] / pair[0] for pair in pairs), 2),
        }
    )


if __name__ == "__main__":
    main()
