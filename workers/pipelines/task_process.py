"""The process of one task pipeline: reads a job from standard input, and writes rows to standard output.

Operators of third parties run in this process, never in the daemon. Each line of the output is `["row", ROW]`, the last
one `["made", RECORD]` or `["failed", {kind, what, where, field, fix}]`.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import msgspec

from rftd.ops.decoding import json_decoder
from rftd.ops.errors import RftdError, explain
from rftd.workers.pipelines.task_pipeline import TaskPipelineJob, made_rows


def main() -> None:
    """Runs the job, with everything printed by operators on standard error."""
    job = json_decoder(TaskPipelineJob).decode(sys.stdin.buffer.read())
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def write(kind: str, payload: Any) -> None:
        output.write(msgspec.json.encode([kind, payload]) + b"\n")

    try:
        rows, made = made_rows(job)
    except RftdError as error:
        reason = {"kind": type(error).__name__, "what": error.what, "where": error.where, "fix": error.fix}
        write("failed", {**reason, "field": error.field})
    except Exception as error:
        write("failed", {"kind": "DataError", "what": explain(error), "where": None, "fix": None, "field": None})
    else:
        for row in rows:
            write("row", row)
        write("made", made)
    output.close()


if __name__ == "__main__":
    main()
