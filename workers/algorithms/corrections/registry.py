"""Every correction by name; importing this imports none of them."""

from __future__ import annotations

from typing import Final

from rftd.workers.algorithms.corrections.correction import Correction
from rftd.workers.plugins import Plugins

_HERE: Final = "rftd.workers.algorithms.corrections"

CORRECTIONS: Final = Plugins[Correction](
    "correction",
    group="rftd.corrections",
    table={
        "decoupled": f"{_HERE}.importance:decoupled",
        "tis": f"{_HERE}.importance:tis",
        "icepop": f"{_HERE}.importance:icepop",
        "token": f"{_HERE}.rejection:token",
        "sequence": f"{_HERE}.rejection:sequence",
        "geometric": f"{_HERE}.rejection:geometric",
        "k2": f"{_HERE}.rejection:k2",
        "k3": f"{_HERE}.rejection:k3",
        "kpop": f"{_HERE}.kpop:KPop",
        "m2po": f"{_HERE}.m2po:M2po",
        "opsm": f"{_HERE}.opsm:Opsm",
    },
)
