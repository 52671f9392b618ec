"""Prints how many steps the optimizer of a saved state has taken, by the state's own count.

python steps_of.py FOLDER        (with the server's interpreter; FOLDER is a checkpoint of skyrl)
"""

from __future__ import annotations

import sys
from pathlib import Path

from orbax.checkpoint import PyTreeCheckpointer

if __name__ == "__main__":
    found = PyTreeCheckpointer().restore(Path(sys.argv[1]).absolute() / "checkpoint_0")
    print(int(found["optimizer_state"]["step"]["value"]))
