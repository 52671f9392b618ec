"""The torch engine. Its halves know nothing of each other.

rollout/  continuous batching on this machine
trainer/  one device or several ranks, deterministic on a CPU
"""
