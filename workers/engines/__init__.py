"""The engines: one folder for each, with a generating and a training half.

fake/      answers without a model, and weights equal to a digest of the training data
torch/     this machine: continuous batching, and training on one device or several ranks
vllm/      generation by vLLM, in separate processes
verl/      training of a model sharded over the ranks of a process group, by verl's FSDP2 or Megatron
learner/   the learner of engines with a model in their own processes, over a small backend: torch's and verl's
ranks/     an engine of many processes, and checkpoints written in parts
tinker/    a remote service for generation and training
external   a model behind a service, for evaluation only
contract/  the checks passed by every engine, to be run by the engine's own tests

A new engine: a folder with a definition for each half (one alone is an engine too), a line in
`generation/engine_registry.py` and in `learning/engine_registry.py` (or an entry point of a package), and a
test calling `contract`.
"""
