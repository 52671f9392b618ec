"""Writes what veRL's own configurations give beyond `ppo_trainer`.

`python -P tests/golden/make_verl_configurations.py FOLDER`, where FOLDER is the installed package verl. A value is kept
if the table of keys has another default for it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

_TESTS: Final = Path(__file__).parents[1]
if str(_TESTS) not in sys.path:
    sys.path.append(str(_TESTS))

from synthetic.models.verl_configurations import text_of  # noqa: E402

from rftd.daemon.config.verl.configurations import FILE  # noqa: E402

if __name__ == "__main__":
    FILE.write_text(text_of(Path(sys.argv[1])))
