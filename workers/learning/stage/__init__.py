"""The training of one stage, independent of the engine that computes gradients.

In reading order:

micro_batch    `MicroBatch`: responses of a batch, as columns of their trained tokens
learner        `Learner`: the interface to an engine: values of tokens, and the gradient of a loss over tokens
updates        the samples of each optimizer step: epochs and mini-batches; checks of a batch
batch_pass     values of the complete batch computed before its first step
mismatched     responses after foreign prompts, and the distance of policy and reference there
steps          the optimizer steps of a batch: gradients, clipping, masks chosen among all tokens of a step
trainer_state  the progress of a stage, as stored in a checkpoint
stage_training  a batch from its checks to its figures: schedule, adaptive KL, skipped steps, remembered baselines

Only engines import this package, which imports torch. An engine of several ranks with a shared batch runs all of it on
each rank.
"""
