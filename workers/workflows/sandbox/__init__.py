"""Commands in a sandbox: a folder, an environment and processes of their own, with bounds.

In reading order:

sandbox      `Sandbox`: the seam, with its commands, bounds and reports
run_folder   `RunFolder`: a folder for one run, removed afterwards whatever dies
processes    `ProcessSandbox`: processes on this machine, in namespaces where the kernel allows them
docker       `DockerSandbox`: containers of a Docker daemon
registry     the sandbox by the name of its isolation
warden_server  the process forking wardens, as the explorer starts and asks for it
forking      its program
warm_text    Python texts run without a start of Python
warden       the program beside a command: starts, watches and ends it
namespaces   the kernel's part: file system, users and rights of the command
usage        what processes use: number, memory, files
forwarding   from a network namespace to the model's endpoint
"""
