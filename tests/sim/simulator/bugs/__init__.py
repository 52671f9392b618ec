"""Planted bugs, one at least for each promise: what the oracles must find, or they prove nothing.

bug             what a bug is
of_the_log      a log that breaks its promises, and clients that write what none should
of_the_daemon   planner, dispatcher, controller, and their folds
of_files        trainers that treat files as if nobody could have come after them
of_pipelines    experience pipelines whose verdicts are forgotten
of_queues       queues of tasks that take requests twice, and give out what nobody added
of_selectors    rows that nobody drew, and rewards that count otherwise than they were recorded
of_runs         errors of runs and workers that are not kept apart, and what is given up
of_servers      explorers that serve strangers, and forget what they told them
of_survivors    daemons that do not hear who remembers what a log has lost
of_workers      trainers, explorers, and fences that do not hold them
"""

from simulator.bugs import (
    of_files,
    of_pipelines,
    of_queues,
    of_runs,
    of_selectors,
    of_servers,
    of_survivors,
    of_the_daemon,
    of_the_log,
    of_workers,
)

BUGS = (
    *of_the_log.BUGS,
    *of_the_daemon.BUGS,
    *of_workers.BUGS,
    *of_files.BUGS,
    *of_pipelines.BUGS,
    *of_survivors.BUGS,
    *of_runs.BUGS,
    *of_queues.BUGS,
    *of_servers.BUGS,
    *of_selectors.BUGS,
)
