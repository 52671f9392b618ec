"""The `vllm` rollout engine: vLLM's AsyncLLM, in separate processes, on GPUs or a CPU.

In reading order:

arguments  its `extra_engine_args`, vLLM's own arguments, and the opening
refused    vLLM's arguments unavailable in a file, with the reasons
tables     vLLM's arguments and models, from `tables.json`, written by a program
checks     checks at submission: models and heads unsupported by vLLM, insufficient memory
engine     the asyncio front: `VllmRolloutEngine`
start      the start of AsyncLLM, and the common properties of its requests
requests   sampling settings as vLLM's, or the reason against; vLLM's output as a response
flights    running requests, the weight version of each token, and answers to groups
counters   the numbers of running requests and drawn tokens, from vLLM's own statistics
watchdog   detection of ended or hanging processes
sockets    the folder of the processes' sockets, never cleaned by vLLM
processes  vLLM's processes: start with a time-out, names of ended ones, end
worker     the extension of vLLM's worker process: opens, verifies and swaps weights
prepared_weights  new weights in vLLM's form, prepared while the model runs
shapes     the tensors of a model folder's weights, to check others against
sampler    the extension of vLLM's sampler: log-probabilities as the contract defines them

`worker` is imported in vLLM's worker process, by name.
"""
