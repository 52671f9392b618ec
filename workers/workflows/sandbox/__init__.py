"""Commands in a sandbox: a folder, an environment and processes of their own, with bounds.

In reading order:

sandbox      `Sandbox`: the seam, with its commands, bounds and reports
run_folder   `RunFolder`: a folder for one run, removed afterwards whatever dies
processes    `ProcessSandbox`: processes on this machine, in namespaces where the kernel allows them; the
             process forking wardens, as the explorer starts and asks for it
docker       `DockerSandbox`: containers of a Docker daemon
python_homes folders readable for a Python outside the system
registry     the sandbox by the name of its isolation
forking      the program of the process forking wardens
warm_text    Python texts run without a start of Python
warden       the program beside a command: starts, watches and ends it
namespaces   the kernel's part: file system, users and rights of the command
usage        what processes use: number, memory, files
forwarding   from a network namespace to the model's endpoint
"""
