"""The long versions of the crash tests, with figures: kills of real processes, power cuts of the embedded log, damage,
trainers that are stopped within operations on files and wake.

Each prints a JSON object and ends with status 1 if anything was lost or broken.
Run: python -P tests/crash/torture.py [--kills 1000] [--paced-kills 400] [--power-losses 10000] [--flips 20000]
     [--zombies 150] [--kafka-zombies 150]
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec

sys.path.append(str(Path(__file__).parents[1]))


def kills(count: int, seed: int, most_s: float, *, paced: bool = False) -> bool:
    """SIGKILLs of daemon, explorer and trainer, with fake engines. True if no promise was broken.

    `paced` runs use experiences again, or have sides that wait for one another at sync points.
    """
    from synthetic.daemon.scene import Scene
    from synthetic.deaths.killing import PACES, UNBOUNDED, killed_series

    with tempfile.TemporaryDirectory(prefix="rftd-") as folder:
        scene = Scene(Path(folder))
        with scene.host:
            overrides = [(*UNBOUNDED, *pace) for pace in PACES.values()] if paced else [()]
            counts = killed_series(scene, random.Random(seed), count, most_s=most_s, overrides=overrides)
    print(msgspec.json.encode(counts).decode(), flush=True)
    return not counts.lost and not counts.broken


def zombies(count: int, seed: int, *, kafka: bool = False) -> bool:
    """Trainers stopped for 5 to 20 s, or killed, at any operation on files. True if no promise was broken."""
    from synthetic.daemon.scene import Scene
    from synthetic.deaths.zombie_trainers import LOST_AFTER, Zombies
    from synthetic.servers.cluster_scene import Cluster

    with tempfile.TemporaryDirectory(prefix="rftd-") as folder, ExitStack() as stack:
        place = Path(folder) / "run"
        place.mkdir()
        scene: Scene
        if kafka:
            scene = stack.enter_context(Cluster(Path(folder) / "servers")).scene(place, *LOST_AFTER)
        else:
            scene = Scene(place, *LOST_AFTER)
        stack.enter_context(scene.host)
        log = ("--kafka", scene.environ["RFTD_KAFKA"]) if kafka else ("--log", f"unix:{scene.data.socket}")
        counts = Zombies(scene, random.Random(seed), log).series(count)
    print(msgspec.json.encode({"kafka": kafka, **msgspec.structs.asdict(counts)}).decode(), flush=True)
    return not counts.broken


def power_losses(count: int, seed: int) -> bool:
    """True if as many logs, each with up to three power cuts, lost nothing that was acknowledged, and opened."""
    from synthetic.faults.power_loss import cut_power

    began_s = time.monotonic()
    counts = cut_power(range(seed, seed + count))
    wall_s = round(time.monotonic() - began_s, 1)
    print(msgspec.json.encode({**msgspec.structs.asdict(counts), "wall_s": wall_s}).decode(), flush=True)
    return not counts.refused and not counts.broken


def damages(flips: int, seed: int) -> bool:
    """Small files of each kind, cut off at every byte, and so many flipped bits each. True if nothing was broken."""
    from synthetic.faults.damage import TARGETS, damaged

    began_s = time.monotonic()
    counts = damaged(TARGETS, random.Random(seed), cuts=0, flips=flips)
    wall_s = round(time.monotonic() - began_s, 1)
    print(msgspec.json.encode({**msgspec.structs.asdict(counts), "wall_s": wall_s}).decode(), flush=True)
    return not counts.broken


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000, help="0: none")
    parser.add_argument("--paced-kills", type=int, default=400, help="of runs with reuse, or with sync points; 0: none")
    parser.add_argument(
        "--most-s", type=float, default=math.inf, help="no experiment is begun to be killed after so long"
    )
    parser.add_argument("--power-losses", type=int, default=10000, help="logs that lose power; 0: none")
    parser.add_argument("--flips", type=int, default=20000, help="flipped bits of each kind of file; 0: no damage")
    parser.add_argument("--zombies", type=int, default=150, help="trainers struck within file operations; 0: none")
    parser.add_argument("--kafka-zombies", type=int, default=150, help="the same on Kafka; 0: none")
    parser.add_argument("--first-seed", type=int, default=0)
    chosen = parser.parse_args()
    kept = [power_losses(chosen.power_losses, chosen.first_seed)] if chosen.power_losses else []
    kept += [damages(chosen.flips, chosen.first_seed)] if chosen.flips else []
    kept += [kills(chosen.kills, chosen.first_seed, chosen.most_s)] if chosen.kills else []
    kept += [kills(chosen.paced_kills, chosen.first_seed, chosen.most_s, paced=True)] if chosen.paced_kills else []
    kept += [zombies(chosen.zombies, chosen.first_seed)] if chosen.zombies else []
    kept += [zombies(chosen.kafka_zombies, chosen.first_seed, kafka=True)] if chosen.kafka_zombies else []
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
