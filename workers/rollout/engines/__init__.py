"""The rollout engines: one file or folder for each."""
