"""The folder of a small environment, copied for its command."""
