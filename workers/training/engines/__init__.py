"""Trainer engines: `registry` opens one by name, and there is one file or folder for each."""
