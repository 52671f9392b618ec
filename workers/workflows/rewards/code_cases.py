"""The program of `code_reward` in its sandbox: runs each case of a request in a fork, and writes the outputs.

Run as a text, where nothing of rftd is: imports the standard library alone. Expected outputs never come here, so that a
program cannot look for them; the assertions of a row must.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
import traceback
from contextlib import suppress
from io import BufferedReader, BufferedWriter, FileIO, TextIOWrapper
from typing import Any, NoReturn

_DUMPABLE = 4
"""Number of prctl's option deciding whether other processes of the user may read the memory of this one."""


def main() -> None:
    """Reads a request from standard input, runs its cases, and writes a list of [ended, output, error], one for each.

    Both are JSON. The request has `program`, a text; `cases`, each with `input`, with `function` and `arguments`, or
    with `code`; `timeout_s` and `output_bytes`, the bounds of a case; and `all_cases`: if false, the first case that is
    not `done` is the last one run.
    """
    request = json.load(sys.stdin)
    # Its memory and its output are the verdict: programs, of the same user, must reach neither.
    ctypes.CDLL(None).prctl(_DUMPABLE, 0, 0, 0, 0)
    results = []
    for case in request["cases"]:
        results.append(_run(request, case))
        if results[-1][0] != "done" and not request["all_cases"]:
            break
    sys.stdout.write(json.dumps(results))


def _run(request: dict[str, Any], case: dict[str, Any]) -> tuple[str, str, str]:
    """Runs a case in a fork, and returns how it ended (`done`, `failed`, `time` or `output`), its output, and its last
    line of errors.

    A case without `input` has ended well only if the fork wrote a random marker once the function returned, or the
    code passed; its output is the text after the marker, so that nothing printed by the program counts.
    """
    marker = os.urandom(16).hex()
    pipes = [os.pipe(), os.pipe()]
    pid = os.fork()
    if pid == 0:
        _become(request["program"], case, marker, [sent for _, sent in pipes])
    texts = {}
    for received, sent in pipes:
        os.close(sent)
        os.set_blocking(received, False)
        texts[received] = b""
    ended, code = _awaited(pid, texts, request)
    output, errors = (texts[received].decode("utf-8", "replace") for received, _ in pipes)
    for received, _ in pipes:
        os.close(received)
    if "input" not in case:
        _, found, output = output.rpartition(marker)
        if not found and not ended:
            ended = "failed"
    last = errors.strip().rpartition("\n")[2][-200:]
    return ended or ("failed" if code else "done"), output, last


def _awaited(pid: int, texts: dict[int, bytes], request: dict[str, Any]) -> tuple[str, int]:
    """Reads a fork's pipes until its end or a bound, kills its process group, and returns the bound and the exit code.

    `texts` maps the pipes' descriptors to the bytes read, which are added here. The bound is `time` or `output`, or
    empty; the exit code is negative after a signal.
    """
    deadline_s = time.monotonic() + request["timeout_s"]
    process = os.pidfd_open(pid)
    poll = select.poll()
    for descriptor in (process, *texts):
        poll.register(descriptor, select.POLLIN)
    bound = ""
    while not bound:
        ready = [descriptor for descriptor, _ in poll.poll(max(0.0, 1000 * (deadline_s - time.monotonic())))]
        for descriptor in set(ready) - {process} or (texts if process in ready else ()):
            with suppress(BlockingIOError):
                while chunk := os.read(descriptor, 1 << 16):
                    texts[descriptor] += chunk
                    if len(texts[descriptor]) > request["output_bytes"]:
                        bound = "output"
                        break
                else:
                    if descriptor in ready:
                        poll.unregister(descriptor)
        if ready == [process]:
            break
        if time.monotonic() >= deadline_s and process not in ready:
            bound = bound or "time"
    with suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    os.close(process)
    return bound, os.waitstatus_to_exitcode(status)


def _become(program: str, case: dict[str, Any], marker: str, outputs: list[int]) -> NoReturn:
    """Runs the program with a case in a fresh fork, and ends the process: with code 0 after success, 1 after an error.

    `outputs` are the descriptors of standard output and standard error. A function's value is written as JSON after
    the marker; after assertions the marker stands alone. The code of a SystemExit is kept.
    """
    code = 1
    try:
        os.setsid()
        given = os.memfd_create("input")
        os.write(given, case.get("input", "").encode())
        os.lseek(given, 0, os.SEEK_SET)
        for number, descriptor in enumerate((given, *outputs)):
            os.dup2(descriptor, number)
        os.closerange(3, 4096)
        sys.stdin = TextIOWrapper(BufferedReader(FileIO(0, closefd=False)), "utf-8")
        sys.stdout, sys.stderr = (
            TextIOWrapper(BufferedWriter(FileIO(number, "w", closefd=False)), "utf-8", "backslashreplace")
            for number in (1, 2)
        )
        module = sys.modules["__main__"] = type(sys)("__main__")
        if "input" not in case:  # judged by its functions: its main part, if any, is for people
            module.__name__ = module.__dict__["__name__"] = "program"
            sys.modules["program"] = module
        exec(compile(program, "program.py", "exec"), module.__dict__)  # noqa: S102 - in a sandbox
        if "function" in case:
            function = _function(module, case["function"])
            returned = json.dumps(function(*case["arguments"]), default=list)
            sys.stdout.write(marker + returned)
        elif "code" in case:
            exec(compile(case["code"], "tests.py", "exec"), module.__dict__)  # noqa: S102
            sys.stdout.write(marker)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(BaseException):
                stream.flush()
        os._exit(code & 0xFF)


def _function(module: Any, name: str) -> Any:
    """Returns a function of a program, or a method of its class `Solution`."""
    function = getattr(module, name, None)
    return getattr(module.Solution(), name) if function is None else function


if __name__ == "__main__":
    main()
