"""The trainer: its loop, the trainer engine's seam (`engine`), and one file or folder for each engine."""
