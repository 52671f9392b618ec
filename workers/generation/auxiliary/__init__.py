"""Auxiliary models: judges and others that workflows and rewards ask. They never change while an experiment runs.

In reading order:

auxiliary_model what workflows and rewards see: a name, `chat`, and base URL and key for programs
rollout_models  the models as one rollout sees them: what they answer is recorded
auxiliary_stage what such a model's own engine is opened and checked with
own_engine      a model with an engine of its own, opened when it is first asked
retries         how often, and how long, a rollout may wait for a service that is busy
service_arguments  its arguments in the experiment file
service         a model that somebody serves over OpenAI's API
"""
