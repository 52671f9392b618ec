"""The `torch` rollout engine: continuous batching over any transformers causal language model.

In reading order:

engine      the asyncio front: `TorchRolloutEngine`
loop        the decode thread: takes requests, swaps weights, hands back responses
batch       the running requests: who joins, one token for each, who leaves
rows        which request is on which row: equal sequences share one
network     the model: prefill, decode, new weights
adapters    whole weights from a low-rank adapter and its base
fused       a leaner forward for Llama, Mistral, Qwen2 and Qwen3
cache       keys and values of the running requests, right-aligned at one shared column
attention   how one new token attends to the cache
draw        which token comes next, and its log-probability
noise       the random numbers: a function of (seed, position)
stopping    when a response ends
running     one request on its way
waiters     who waits for it: one caller for one, or for several
trial       a check at opening, that the model is one that all this fits
"""
