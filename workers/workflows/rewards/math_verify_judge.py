"""The process running math-verify: lines of [truth, answer, seconds] in, a line with 1 or 0 for each out.

Started by `math_verify_reward`. The library bounds its time by signals, which work in a main thread only, and hands
text written by a model to a computer algebra system. It therefore runs in a separate process, with its timeouts off: a
timer ends the process if judging takes longer, and the memory is bounded.
"""

from __future__ import annotations

import contextlib
import json
import logging
import resource
import signal
import sys
from typing import Final

MEMORY_BYTES: Final = 4 << 30
"""Maximum memory of the process."""


def main() -> None:
    """Judges line by line until the input ends."""
    with contextlib.suppress(ValueError, OSError):  # if a lower limit is set already
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    from math_verify import parse, verify

    # The library would log a warning about its disabled timeouts at each call.
    logging.disable(logging.CRITICAL)
    for line in sys.stdin:
        truth, answer, seconds = json.loads(line)
        # Processor time, so that a busy machine changes no reward. The timer's signal ends this process, in library
        # code too.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        same = verify(parse(truth, parsing_timeout=None), parse(answer, parsing_timeout=None), timeout_seconds=None)
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(f"{int(same)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
