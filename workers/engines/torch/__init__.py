"""The torch engine, in two independent halves.

rollout/  continuous batching on this machine
trainer/  one device or several ranks, deterministic on a CPU
"""
