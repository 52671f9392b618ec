"""Writes docs/errors.md from the error classes and the fixes below.

`.venv/bin/python -P tests/golden/make_errors_page.py`, after adding a code; a test says when the page is out of date.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Final

from rftd.daemon.verbs.explain import codes

PAGE: Final = Path(__file__).parents[2] / "docs" / "errors.md"

FIXES: Final = {
    "RFTD-000": "Read the message; every error that has a code of its own is below.",
    "RFTD-API-001": "Set `RFTD_TOKEN` to the daemon's token, or send `Authorization: Bearer TOKEN`.",
    "RFTD-API-002": "Use the daemon's IP address or `localhost`, and no page of another origin.",
    "RFTD-API-003": "Name datasets by path instead of sending them.",
    "RFTD-API-004": "See `GET /openapi.json`.",
    "RFTD-API-005": "Try again later, or follow fewer experiments at once.",
    "RFTD-API-006": "Send `application/json`; an experiment file may be `application/yaml`.",
    "RFTD-ARC-001": "Copy the file again, or export anew with `rftd export`; import with the release that wrote it.",
    "RFTD-CAL-001": "Correct the agent program's request: the error object that it was sent names the parameter.",
    "RFTD-CFG-001": "Correct what the message names; `rftd config check FILE` shows everything at once.",
    "RFTD-CFG-002": "Correct the YAML at that line; give each key once.",
    "RFTD-CFG-003": "Make the file smaller; data belongs into datasets.",
    "RFTD-CFG-004": "Correct the name; the message has the nearest one, or the known ones.",
    "RFTD-CFG-005": "Give a value of the type, or one of the words, that the message names.",
    "RFTD-CFG-006": "Export the variable, or give a default: `${oc.env:NAME,default}`.",
    "RFTD-CFG-007": "Export the value and write `{env: NAME}`.",
    "RFTD-CFG-008": "Change one of the two fields, or give the missing one.",
    "RFTD-CFG-009": "Write what the message offers, or leave the field out.",
    "RFTD-CON-001": "See `rftd get NAME` for its state; end the other daemon, or give another `--data` or `--port`.",
    "RFTD-CON-002": "Send a new key, or none; the message says what this one was used for, and when.",
    "RFTD-DAT-001": "Correct the path, the split or the keys of `format`; the message names the file and the row.",
    "RFTD-DAT-002": "Correct the row that the message names, or leave it out, and submit a new experiment.",
    "RFTD-LOG-001": "See the daemon's log; nothing that was acknowledged is gone.",
    "RFTD-LOG-002": "Restore the whole data folder from a backup; the disk or something else changed the file.",
    "RFTD-LOG-003": "Put the newest log back, or go on without what was lost: `rftd serve --accept-loss NAME`.",
    "RFTD-LOG-004": "Free some space; writers go on by themselves.",
    "RFTD-LOG-005": "Use one release of rftd for all processes; a record over 2 MiB must be made smaller.",
    "RFTD-LOG-006": "Nothing: the newer owner goes on. If you did not start one, look for a second daemon.",
    "RFTD-LOG-007": "Upgrade this process.",
    "RFTD-NET-001": "Start one with `rftd serve`, or name its address with `--server`.",
    "RFTD-NOF-001": "See `rftd ls` for the names.",
    "RFTD-TIM-001": "Wait longer with `--timeout`, or look again with `rftd watch NAME`.",
    "RFTD-USE-001": "See `--help` of the verb.",
    "RFTD-WRK-001": "See the worker's log: `rftd logs NAME`.",
    "RFTD-WRK-002": "Correct the workflow, the reward or the row that the message names.",
    "RFTD-WRK-003": "Raise `explorer.max_timeout`, or find out what the workflow waits for.",
    "RFTD-WRK-004": "See the trainer's log: `rftd logs NAME --role trainer`.",
    "RFTD-WRK-005": "Lower the learning rate, or look at the batch: `rftd experiences ls NAME --step N`.",
    "RFTD-WRK-011": "Free memory on the device, or do what the message names; the run is tried again by itself.",
    "RFTD-WRK-012": "Nothing where a process was killed: all are started again. Else read the rank's last lines in "
    "the message; raise `trainer.engine_args.rank_timeout_s` for steps that only take long.",
    "RFTD-WRK-006": "Free some space; the worker is started again by itself.",
    "RFTD-WRK-008": "Nothing is wrong: lower `explorer.over_rollout.ratio` or raise its `wait_after_min` to lose less.",
    "RFTD-WRK-009": "Nothing is wrong: raise the staleness bound, or let fewer batches be in flight, to lose less.",
}
"""What to do, by code; what an error means is its docstring."""

UNSAID: Final = "The message says what to do."

HEAD: Final = """\
# Errors

Written by `tests/golden/make_errors_page.py` from the error classes; do not edit. Every error of the command line and
the API carries one of these codes, says where it happened and what to do. `rftd explain CODE` prints an entry.

| code | class | exit status | HTTP status |
|---|---|---|---|
"""

TAIL: Final = """
## RFTD-BUG

rftd itself failed, not your input. Exit status 70.

Fix: send the report whose path was printed.
"""


def text() -> str:
    """The page as it should be."""
    found = codes()
    rows = [
        f"| [{code}](#{code.lower()}) | {kind.__name__} | {kind.exit_status} | {kind.http_status} |\n"
        for code, kind in found.items()
    ]
    entries = [
        f"\n## {code}\n\n{' '.join((inspect.getdoc(kind) or '').split())}\n\nFix: {FIXES.get(code, UNSAID)}\n"
        for code, kind in found.items()
    ]
    return HEAD + "".join(rows) + "".join(entries) + TAIL


if __name__ == "__main__":
    PAGE.write_text(text())
