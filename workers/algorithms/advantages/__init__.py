"""Advantages, in reading order: `advantage` (the seam), `registry`, one file for each function."""
