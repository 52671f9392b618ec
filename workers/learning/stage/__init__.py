"""The training of one stage, apart from the engine behind its gradients.

In reading order:

micro_batch    `MicroBatch`: responses of a batch, as columns of their trained tokens
learner        `Learner`: the seam to an engine: values of tokens, and the gradient of a loss over tokens
updates        the samples of each optimizer step: epochs and mini-batches; checks of a batch
batch_pass     the facts of a whole batch needed before its first step
mismatched     responses after foreign prompts, and the distance of policy and reference there
steps          the optimizer steps of a batch: gradients, clipping, masks chosen among all of a step
trainer_state  the progress of a stage, as stored in a checkpoint
stage_training  a batch from its checks to its figures: schedule, adaptive KL, skipped steps

Only engines import this package, which imports torch. An engine with ranks sharing a batch runs all of it on each.
"""
