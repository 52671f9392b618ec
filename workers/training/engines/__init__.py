"""Trainer engines: `registry`, and one file or folder for each."""
