"""One file for each CLI verb; each has a click command named `command`."""
