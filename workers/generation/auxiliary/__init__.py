"""Auxiliary models: judges and other models for workflows and rewards, unchanged while an experiment runs.

In reading order:

auxiliary_model the view of workflows and rewards: a name, `chat`, and base URL and key for programs
rollout_models  the models for one rollout, with a record of their answers
auxiliary_stage the stage for opening and checking a model's separate engine
own_engine      a model with a separate engine, opened at the first request
retries         a rollout's budget of retries and pauses for a busy service
service_arguments  the service's arguments in the experiment file
service         a model served elsewhere over OpenAI's API
"""
