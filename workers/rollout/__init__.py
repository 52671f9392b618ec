"""The rollout engine: its seam (`engine`), and one file or folder for each engine."""
