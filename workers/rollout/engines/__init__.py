"""The rollout engines: one file or folder for each.

definition  what a registered name leads to, and what an engine is opened with
registry    the engines by name, and the opening of one for a stage
shared_devices  the memory of engines that compute on one device
contract    the checks that every engine passes, to be run by its own tests
fake        answers without a model
torch       continuous batching on this machine
external    a model of a service, which is measured
vllm        vLLM, in processes of its own
tinker      a service, with weights that lie there
"""
