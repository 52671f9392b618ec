"""Prints as JSON how long runs of 30 kinds stand still on their page, watched one by one from the submission on.

Run: python -P tests/bench/watched_runs.py [--interval 0.25]

Engines are fake, workers are real processes. Movement is a change of the page's sentence, progress or work under way; a
sentence in other words than those of progress and work names a wait. `first_s` counts from the submission to the first
movement, `still_s` is the longest time without movement and without a named wait, `named_s` the longest named wait.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

sys.path.append(str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from figures import note, quantiles, read_options, tell
from synthetic.daemon.scene import ENDED, EXPERIMENT, SHORT, Scene

ALGORITHMS: Final = (
    *("grpo", "grpo_verl", "dr_grpo", "dapo", "gspo", "luspo", "vespo", "gmpo", "cispo", "sapo", "reinforceplusplus"),
    *("reinforceplusplus_baseline", "rloo", "opo", "maxrl", "gpg", "opmd", "asymre", "topr", "rec"),
)
KINDS: Final[dict[str, tuple[str, ...]]] = {
    **{name: (*SHORT, f"algorithm.algorithm_type={name}") for name in ALGORITHMS},
    "two stages": ("buffer.total_steps=6",),
    "evaluated often": ("stages=[]", "buffer.total_steps=6", "explorer.eval_interval=1"),
    "saved often": (*SHORT, "trainer.save_interval=1"),
    "deterministic": (*SHORT, "deterministic=true", "synchronizer.sync_style=fixed", "synchronizer.sync_offset=0"),
    "synchronous": (*SHORT, "synchronizer.sync_style=fixed", "synchronizer.sync_offset=0"),
    "two explorers": (*SHORT, "explorer.rollout_model.engine_num=2"),
    "slow steps": (*SHORT, "trainer.engine_args.step_s=7"),
    "slow rollouts": (*SHORT, "explorer.rollout_model.extra_engine_args.latency_s=7"),
    "paused": (*SHORT, "buffer.total_steps=40"),
    "cancelled": (*SHORT, "buffer.total_steps=4000"),
}
"""Overrides of the runs by title."""
_PAUSE_S: Final = 8.0
_ACT_STEP: Final = 3


def main() -> None:
    """Watches one run of each kind."""
    options = read_options(__doc__, interval=0.25)
    figures: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        scene = Scene(Path(folder), environ={"XDG_STATE_HOME": folder})
        with scene.host:
            for number, (title, overrides) in enumerate(KINDS.items()):
                figures[title] = _watched(scene, title, (f"name=run{number}", *overrides), options.interval)
                note({title: figures[title]})
    shown = list(figures.values())
    tell(
        {
            "runs": len(shown),
            "first_s": quantiles([run["first_s"] for run in shown], 0.5, 0.95),
            "still_s": quantiles([run["still_s"] for run in shown], 0.5, 0.95),
            "named_s": quantiles([run["named_s"] for run in shown], 0.5, 0.95),
            "over_5_s": sorted(title for title, run in figures.items() if run["still_s"] > 5),
            "ends": sorted({run["end"] for run in shown}),
        },
        may_be_zero=("first_s", "still_s", "named_s"),
    )


def _watched(scene: Scene, title: str, overrides: tuple[str, ...], interval_s: float) -> dict[str, Any]:
    begun_s = time.monotonic()
    name = scene.submit(EXPERIMENT, *overrides)
    acts = _acts(scene, title, name)
    shown: tuple[Any, ...] | None = None
    first_s, moved_s, still_s, named_s = 0.0, begun_s, 0.0, 0.0
    state = ""
    while state not in ENDED:
        page = scene.get(f"/v1/experiments/{name}").raise_for_status().json()
        moment, state = page["moment"], page["experiment"]["summary"]["state"]
        now_s = time.monotonic()
        present = (state, *(moment[part] for part in ("sentence", "progress", "work_words", "evaluation")))
        is_named = moment["sentence"] not in (moment["progress"], moment["work_words"])
        if shown is not None and present != shown:
            first_s = first_s or now_s - begun_s
            moved_s = now_s
        shown = present
        if is_named:
            named_s = max(named_s, now_s - moved_s)
        else:
            still_s = max(still_s, now_s - moved_s)
        if acts and page["experiment"]["summary"]["step"] >= _ACT_STEP:
            acts.pop(0)()
        time.sleep(interval_s)
    spans = {"first_s": first_s or time.monotonic() - begun_s, "still_s": still_s, "named_s": named_s}
    return {key: round(span_s, 2) for key, span_s in spans.items()} | {"end": state}


def _acts(scene: Scene, title: str, name: str) -> list[Callable[[], object]]:
    """The commands given to a run under way, one at each look from step 3 on."""
    if title == "cancelled":
        return [lambda: scene.rftd("cancel", name)]
    if title == "paused":
        return [lambda: scene.rftd("pause", name), lambda: time.sleep(_PAUSE_S), lambda: scene.rftd("resume", name)]
    return []


if __name__ == "__main__":
    main()
