"""Programs that try what a sandbox forbids, each with the bound or the word that names the attempt."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import psutil

from rftd.workers.workflows.sandbox.processes import NAME_VARIABLE, ProcessSandbox
from rftd.workers.workflows.sandbox.run_folder import RunFolder, rollout_folder
from rftd.workers.workflows.sandbox.sandbox import SandboxBounds, SandboxCommand, SandboxReport

SMALL = SandboxBounds(wall_s=60, memory_mib=192, disk_mib=8, processes=64, output_mib=1)
BOUNDED = {
    "fork bomb": (
        "processes",
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
    ),
    "threads": (
        "processes",
        "import threading, time\nthreading.stack_size(262144)\nwhile True:\n    try:\n"
        "        threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "    except RuntimeError:\n        pass",
    ),
    "memory": ("memory", "kept = []\nwhile True:\n    kept.append(bytearray(1 << 20))"),
    "10 GB in a file": (
        "disk",
        "with open('large', 'wb') as file:\n    for _ in range(10240):\n        file.write(bytes(1 << 20))\n"
        "        file.flush()",
    ),
    "10 GB in many files": (
        "disk",
        "for number in range(10240):\n    with open(f'{number}', 'wb') as file:\n        file.write(bytes(1 << 20))",
    ),
    "10 GB in files without a name": (
        "disk",
        "import os\nkept = []\nwhile True:\n    file = open('hidden', 'wb')\n    os.unlink('hidden')\n"
        "    file.write(bytes(1 << 20))\n    file.flush()\n    kept.append(file)",
    ),
    "flood": ("output", "while True:\n    print('x' * 10000)"),
    "SIGTERM ignored": (
        "time",
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True:\n    time.sleep(1)",
    ),
    "processor time": ("cpu", "while True:\n    pass"),
}
CHILDREN = (
    "import os, sys, time\nfor _ in range(3):\n    if os.fork() == 0:\n        os.setsid()\n        os.close(1)\n"
    "        os.close(2)\n        if os.fork():\n            os._exit(0)\n        time.sleep(600)\n"
    "open('answer.txt', 'w').write('done')"
)


async def run_python(
    program: str, *, isolation: str = "namespaces", bounds: SandboxBounds = SMALL, **more: Any
) -> tuple[SandboxReport, RunFolder]:
    """Runs a Python program in a sandbox, in a folder that is gone afterwards."""
    async with rollout_folder() as folder:
        folder.write("program.py", program.encode())
        words = (sys.executable, "-I", "program.py")
        command = SandboxCommand(words=words, folder=folder, bounds=bounds, **more)
        report = await ProcessSandbox(isolation).run(command)
    return report, folder


def processes_of(folder: RunFolder) -> list[psutil.Process]:
    """Running processes of a run."""
    return list(_marked(folder.path.name))


def _marked(name: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        try:
            if process.environ().get(NAME_VARIABLE) == name and process.status() != psutil.STATUS_ZOMBIE:
                yield process
        except psutil.Error:
            continue
