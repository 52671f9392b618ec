"""Peak memory of log-probabilities and their gradient with a vocabulary of 150k, against whole logits; prints JSON.

python -P tests/bench/vocabulary_memory.py [--tokens 2048] [--vocabulary 151936] [--hidden 256]

Each way in a process of its own: hidden states and an output layer, log-probability and entropy of each token, backward
through both. `peak_mib` is the largest resident size beyond that of the process before the first product.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from figures import read_options, tell

BAR = 3.0


def one(way: str, tokens: int, vocabulary: int, hidden: int) -> None:
    """Computes one way, and prints its peak and its time."""
    import torch

    from rftd.workers.engines.torch.trainer.token_logprobs import token_logprobs

    torch.set_num_threads(1)
    torch.manual_seed(0)
    states = torch.randn(tokens, hidden, requires_grad=True)
    head = (0.02 * torch.randn(vocabulary, hidden)).requires_grad_()
    targets, heat = torch.randint(0, vocabulary, (tokens,)), torch.ones(tokens)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began_s = time.perf_counter()
    if way == "ours":
        logprobs, entropies = token_logprobs(states, head, targets, heat)
    else:
        every = torch.log_softmax(states @ head.T, -1)
        logprobs, entropies = every.gather(1, targets[:, None])[:, 0], -(every.exp() * every).sum(-1)
    (logprobs.sum() - 0.01 * entropies.sum()).backward()  # type: ignore[no-untyped-call]
    took_s = time.perf_counter() - began_s
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    assert states.grad is not None
    print(json.dumps({"peak_mib": round(peak_kib / 1024), "took_s": round(took_s, 2), "sum": float(states.grad.sum())}))


def main() -> None:
    """Prints both and their ratio."""
    options = read_options(__doc__, way={"choices": ("ours", "naive")}, tokens=2048, vocabulary=151_936, hidden=256)
    sizes = (options.tokens, options.vocabulary, options.hidden)
    if options.way:
        one(options.way, *sizes)
        return
    found = {}
    for way in ("ours", "naive"):
        words = [sys.executable, "-P", __file__, "--way", way]
        words += ["--tokens", str(sizes[0]), "--vocabulary", str(sizes[1]), "--hidden", str(sizes[2])]
        said = subprocess.run(words, check=True, capture_output=True, timeout=300, text=True).stdout
        found[way] = json.loads(said)
    ratio = found["naive"]["peak_mib"] / found["ours"]["peak_mib"]
    tell({**found, "ratio": round(ratio, 1), "bar": BAR})


if __name__ == "__main__":
    main()
