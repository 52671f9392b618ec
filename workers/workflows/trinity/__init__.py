"""Trinity-RFT's `Workflow` classes, run as they are: a user's file imports `trinity.*`, and gets the names below.

In reading order:

names       every module and name of Trinity-RFT available to a source
imports     `SourceImports`: the `__import__` of one source; no module `trinity` exists for anybody else;
            `ClassRegistry`: classes by name, with both forms of the decorator
task        `TrinityTask` with the formats and settings of its taskset
experience  `TrinityExperience`: drawn tokens with a reward
classes     the base classes of workflows
step_wise   base classes with a reward for each step, or for all steps
rewards     `TrinityReward`: the base class of rewards, and rftd's own rewards under Trinity-RFT's names
openai      clients of OpenAI's API: the package `openai`, or a small stand-in
draws       `DrawLedger`: the answers drawn in a rollout, and results made of them alone
calls       `RolloutThread`: a class's calls from its thread to the rollout's event loop
model       `TrinityModel`: the trained model with the methods of Trinity-RFT's `ModelWrapper`
absent      workflows of Trinity-RFT not here, with the need of each
adapter     `ClassWorkflow`: a class as a workflow of rftd
"""
