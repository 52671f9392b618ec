"""veRL's configuration: one table of its keys, used for `trainer.trainer_config` and for `rftd import-verl`.

    table.py, tables.json  the keys, suggestions for misspelt keys, veRL's own configurations
    key_values.py    a key's value according to the fields of an experiment

An import, in the order of the work:

    importing.py     `import_file`, `import_command`: the public calls, application of rules, gaps; read these first
    shell/           a script's commands, with variables expanded and nothing run
    hydra.py         the value of an override
    settings.py      keys and values with their positions; `defaults`, `+`, `~`, `${...}`
    config_files.py  the user's file named by `--config-name` or `defaults`
    reward_plugin.py the skeleton of a plug-in for a reward function
    draft.py         the experiment file under construction, and a report line per key
    pacing.py        rules: steps per step of veRL, and the run-ahead of explorers
    learning.py      rules: algorithm, losses, trainer, critic
    optimizer.py     rules: the optimizer, and the training engine
    running.py       rules: names, data, evaluations, the monitor
    gpus.py          rules: the GPUs of explorers, trainer and reward model
"""
