"""Tokens per second of the torch engine against `transformers` generate on the same 64 requests.

Outputs of 8 to 64 tokens (a fixed mixture), greedy; generate runs them as one static batch until the longest is done
and discards what is beyond each one's length. Pairs are interleaved, the median of the ratios counts.

    python -P tests/bench/rollout_torch.py [--pairs 5] [--threads 1]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, logging

sys.path.insert(0, str(Path(__file__).parent))

from figures import median_of, median_ratio, read_options, tell

from rftd.workers.engines.torch.rollout.engine import TorchRolloutEngine
from rftd.workers.generation.engine import GenerationRequest, Sampling
from rftd.workers.models.tiny_model import make_tiny_model
from rftd.workers.weights import checkpoint
from rftd.workers.weights.channel import WeightsRef
from rftd.workers.weights.torch_bytes import bytes_of

REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS = 64, (6, 24), (8, 64)


@dataclass(frozen=True)
class Work:
    """The requests of one measurement."""

    prompts: list[list[int]]
    lengths: list[int]

    @classmethod
    def make(cls, vocabulary: int) -> Work:
        rng = np.random.default_rng(0)
        sizes = rng.integers(*PROMPT_TOKENS, REQUESTS, endpoint=True)
        lengths = np.linspace(*OUTPUT_TOKENS, REQUESTS).round().astype(int)
        rng.shuffle(lengths)
        return cls([rng.integers(7, vocabulary, size).tolist() for size in sizes], lengths.tolist())


class Reference:
    """`transformers` generate over one static, left-padded batch."""

    def __init__(self, folder: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder)
        self.tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")

    def run(self, work: Work) -> list[list[int]]:
        batch = self.tokenizer.pad({"input_ids": work.prompts}, return_tensors="pt")
        longest = max(work.lengths)
        with torch.inference_mode():
            output = self.model.generate(**batch, do_sample=False, max_new_tokens=longest, min_new_tokens=longest)
        drawn = output[:, batch["input_ids"].shape[1] :].tolist()
        return [tokens[:length] for tokens, length in zip(drawn, work.lengths, strict=True)]


async def ours(engine: TorchRolloutEngine, work: Work) -> list[list[int]]:
    requests = [
        GenerationRequest(
            id=UUID(int=i),
            prompt=tuple(prompt),
            sampling=Sampling(temperature=0.0, max_tokens=length, min_tokens=length),
        )
        for i, (prompt, length) in enumerate(zip(work.prompts, work.lengths, strict=True))
    ]
    return [list(g.tokens) for g in await asyncio.gather(*map(engine.generate, requests))]


async def compare(folder: Path, *, slots: int, pairs: int, threads: int) -> dict[str, object]:
    torch.set_num_threads(threads)
    reference = Reference(folder)
    work = Work.make(reference.model.config.vocab_size)
    tokens = sum(work.lengths)
    engine = await TorchRolloutEngine.open(str(folder), slots=slots, max_model_len=256, threads=threads)
    exported = checkpoint.export(bytes_of(reference.model.state_dict()), folder / "v0", version=0, generation=0)
    await engine.load_weights(
        WeightsRef(version=0, generation=0, path=exported.path, manifest=exported.manifest, checksum=exported.checksum)
    )
    rows: list[tuple[float, float]] = []
    equal = True
    for pair in range(pairs + 1):
        spent = {}
        for side in ("generate", "engine") if pair % 2 else ("engine", "generate"):
            begin = time.perf_counter()
            if side == "generate":
                expected = reference.run(work)
            else:
                found = await ours(engine, work)
            spent[side] = time.perf_counter() - begin
        equal &= expected == found
        if pair:  # the first warms up both
            rows.append((tokens / spent["generate"], tokens / spent["engine"]))
    await engine.close()
    return {
        "parameters": reference.model.num_parameters(),
        "slots": slots,
        "threads": threads,
        "pairs": pairs,
        "equal_tokens": equal,
        "generate_tokens_per_s": median_of(r[0] for r in rows),
        "engine_tokens_per_s": median_of(r[1] for r in rows),
        "ratio": median_ratio((r[1] for r in rows), (r[0] for r in rows)),
        "ratios": [round(r[1] / r[0], 2) for r in rows],
    }


def main() -> None:
    arguments = read_options(__doc__, pairs=5, threads=1, slots=64)
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        small = make_tiny_model(Path(folder) / "tiny", seed=1)
        large = make_tiny_model(Path(folder) / "10M", seed=1, hidden_size=320, layers=6, heads=5)
        for model in (small, large):
            result = asyncio.run(
                compare(model, slots=arguments.slots, pairs=arguments.pairs, threads=arguments.threads)
            )
            tell(result)


if __name__ == "__main__":
    main()
