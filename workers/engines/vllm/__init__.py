"""The `vllm` rollout engine: vLLM's AsyncLLM, in processes of its own, on GPUs or a CPU.

In reading order:

arguments  its `extra_engine_args`, vLLM's own arguments, and its opening
refused    the arguments of vLLM that a file cannot give, with the reasons
tables     vLLM's arguments and the models that it has, from `tables.json`, which a program writes
checks     what is refused at submission: models and heads that vLLM does not have, memory that is too small
engine     the asyncio front: `VllmRolloutEngine`
start      the start of vLLM's own front, and what its requests have in common
requests   our sampling as vLLM's, or the reason for which it has none; its output as our response
flights    requests under way, the weights that drew each of their tokens, and answers of those made together
counters   the numbers of running requests and drawn tokens, from vLLM's own statistics
watchdog   tells when vLLM's processes ended or hang
sockets    the folder in which they meet, of which vLLM removes nothing
processes  vLLM's processes: their start with a time-out, their names when one died, their end
worker     our part of vLLM's worker process: it opens, verifies and swaps weights
prepared_weights  new weights as it computes with them, made beside the running model
shapes     the tensors that a model folder's weights consist of, to check others against
sampler    our part of its sampler: log-probabilities as the contract has them

`worker` is imported in vLLM's worker process, by name.
"""
