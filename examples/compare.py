"""Compares two runs of a daemon: `python compare.py FIRST SECOND` prints their figures at equal steps."""

import sys

from rftd import Client


def main(first: str, second: str) -> None:
    with Client() as client:
        a, b = client.run(first), client.run(second)
        for row in client.compare(a, b, points=5).to_dicts():
            reward = row["reward_mean"]
            print(f"step {row['step']:>5}  {row['run']:<12}  reward {'-' if reward is None else format(reward, '.3f')}")
        for run in (a, b):
            scores = [f"{row.taskset} {row.score:.3f}" for row in run.evals()[-1:] if row.score is not None]
            print(f"{run.name}: {run.summary().state}; held out: {', '.join(scores) or '-'}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
