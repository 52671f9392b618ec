"""Programs copied into the folder of an environment's command, and run by the Python with the environment's package.

In reading order:

server              the five calls over HTTP, a process for each session; imports the standard library alone
gymnasium_tasks     gymnasium: environments with few actions, as text
reasoning_gym_tasks reasoning-gym: generated questions, scored by their generator
verifiers_tasks     verifiers v1: tasksets of one turn
openenv_tasks       OpenEnv: environments by the path of their class
textworld_tasks     TextWorld: games of text, made from seeds

Each `KIND_tasks` has a function `open_tasks(name, arguments)`, returning an object with two methods:

    row(index)            the row, as a mapping with `prompt` and `response`; None after the last
    episode(index, seed)  an episode of the row, with `step(action) -> (observation, done)`,
                          `score() -> (reward, parts)` and `close()`
"""
