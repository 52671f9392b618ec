"""How far verl is from the torch engine, and how much longer its step takes. Run: python -P tests/bench/verl_parity.py

In an environment with verl (`make engines-cpu`), PYTHONPATH at .dev where rftd is not installed there.
"""

from __future__ import annotations

import resource
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import read_options, tell
from synthetic.models.engine_parity import Case, ParityBench, all_cases, distance, make_models

from rftd.streams.spec.spec import LoraSpec

BOUNDS = {"loss": 1e-5, "norm": 1e-4, "weights": 1e-4}


def processor_s(bench: ParityBench, case: Case, *, rounds: int) -> float:
    """The processor time of one of the case's steps, the median of some runs, ranks that ended aside."""
    times = []
    for _ in range(rounds):
        before = resource.getrusage(resource.RUSAGE_SELF)
        bench.run(case)
        after = resource.getrusage(resource.RUSAGE_SELF)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        times.append(spent / len(list(case.batches())))
    return statistics.median(times)


def main() -> None:
    asked = read_options(
        __doc__,
        ranks=[1, 2],
        budgets=[8192, 96, 24],
        only={"nargs": "*", "help": "algorithms; all of them unless given"},
        lora={"type": int, "default": 0, "metavar": "RANK", "help": "train an adapter of this rank"},
    )
    lora = LoraSpec(rank=asked.lora, alpha=2 * asked.lora) if asked.lora else None
    found: dict[str, object] = {}
    failed = False
    with tempfile.TemporaryDirectory(prefix="parity-") as name:
        folder = Path(name)
        model = make_models(folder)
        cases = [case for case in all_cases(asked.budgets) if not asked.only or case.algorithm in asked.only]
        plain = ParityBench("torch", model, folder / "torch", lora=lora)
        expected = [plain.run(case) for case in cases]
        for ranks in asked.ranks:
            bench = ParityBench("verl", model, folder / f"verl-{ranks}", {"ranks": ranks, "device": "cpu"}, lora)
            worst = dict.fromkeys(BOUNDS, 0.0)
            at = dict.fromkeys(BOUNDS, "")
            for case, right in zip(cases, expected, strict=True):
                apart = distance(right, bench.run(case))
                for what in BOUNDS:
                    if getattr(apart, what) > worst[what]:
                        worst[what] = getattr(apart, what)
                        at[what] = f"{case.algorithm}, {case.budget_tokens} tokens, {case.updates.epochs} epochs"
            failed = failed or any(worst[what] > bound for what, bound in BOUNDS.items())
            found[f"{ranks} ranks"] = {what: {"farthest": worst[what], "at": at[what]} for what in BOUNDS}
            if ranks == 1:
                grpo = Case(algorithm="grpo")
                own = processor_s(bench, grpo, rounds=7)
                other = processor_s(plain, grpo, rounds=7)
                found["a step of grpo beyond torch's, ms of processor time"] = round(1000 * (own - other), 1)
            bench.engine.close()
    tell({"cases": len(cases), "adapter of rank": asked.lora, **found}, may_be_zero=("adapter of rank",))
    if failed:
        raise SystemExit(f"farther apart than {BOUNDS}")


if __name__ == "__main__":
    main()
