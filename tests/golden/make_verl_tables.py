"""Writes the tables of veRL anew: the defaults of its keys and its own configurations are the installed package's.

`python -P tests/golden/make_verl_tables.py FOLDER`, where FOLDER is the installed package verl. What becomes of a key
stays as it is in the file. A test of tests/engines says when the tables are out of date, and names keys without a row;
`make newer` says when they are not of the locked release.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

_TESTS: Final = Path(__file__).parents[1]
if str(_TESTS) not in sys.path:
    sys.path.append(str(_TESTS))

from synthetic.models.verl_tables import text_of  # noqa: E402

from rftd.daemon.config.verl.table import FILE  # noqa: E402

if __name__ == "__main__":
    FILE.write_text(text_of(Path(sys.argv[1])))
