"""The `torch` rollout engine: continuous batching over any transformers causal language model.

In reading order:

engine      the asyncio front: `TorchRolloutEngine`
arguments   its `engine_args`
memory      what it takes of the device's memory at least
loop        the decode thread: takes requests, swaps weights, hands back responses
batch       the running requests: who joins, one token for each, who leaves
alone       the slower way: each request by itself, with transformers' own cache or none
responses   what becomes of drawn tokens, in both ways
recordings  steps of a few shapes over tensors that stay where they are, recorded and repeated
cuda_graphs those recordings on a GPU, and why a model has none
rows        which request is on which row: equal sequences share one
network     the model: prefill, decode, new weights
fused       a leaner forward for Llama, Mistral, Qwen2 and Qwen3
cache       keys and values of the running requests, right-aligned at one shared column
attention   how one new token attends to the cache
adjust      biases and penalties of logits
draw        which token comes next, and its log-probability
transfer    drawn tokens on their way to the host
noise       the random numbers: a function of (seed, position)
running     one request on its way
waiters     who waits for it: one caller for one, or for several
trial       a check at opening, that the model is one that all this fits
"""
