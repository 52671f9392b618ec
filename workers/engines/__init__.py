"""The engines: one folder for each, with the half that generates and the half that trains.

fake/      answers without a model, and weights that are a digest of what was trained
torch/     this machine: continuous batching, and training on one device or several ranks
vllm/      generation by vLLM, in processes of its own
verl/      training of a model spread over the ranks of a process group, by verl's FSDP2 or Megatron
learner/   the learner of engines with a model in their own processes, over a small backend: torch's and verl's
ranks/     an engine of many processes, and checkpoints that they write in parts
tinker/    a service that generates and trains
external   a model of a service, which is measured
contract/  the checks that every engine passes, to be run by its own tests
"""
