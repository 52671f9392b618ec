"""veRL's configuration: one table of its keys, which `trainer.trainer_config` and `rftd import-verl` both follow.

    table.py, tables.json  the keys, the name that was meant, veRL's own configurations
    own_words.py     a key's value as the fields of an experiment have it

An import, in the order of the work:

    importing.py     `import_file`, `import_command`: the public calls, the rules applied, gaps; read these first
    shell/           a script's commands, with its variables expanded and nothing run
    hydra.py         the value of an override
    settings.py      keys and values with their places; `defaults`, `+`, `~`, `${...}`
    config_files.py  the user's file that `--config-name` or `defaults` means
    reward_plugin.py the skeleton of a plug-in for a reward function
    draft.py         the experiment file under construction, and the line that each key gets
    pacing.py        rules: the steps here that are one there, and how far explorers run ahead
    learning.py      rules: algorithm, losses, trainer, critic
    optimizer.py     rules: the optimizer, and the engine that trains
    running.py       rules: names, data, evaluations, the monitor
    gpus.py          rules: the shares of explorers, trainer and reward model
"""
