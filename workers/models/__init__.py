"""Models of Hugging Face's layout, before an engine loads them.

cached_tokens the keys and values that a text takes, by the settings of a model
model_folder  whether a folder's files are there and whole, and which tokens end a text
model_type    what config.json tells of a model that is not loaded
pretrained    the model in a folder, without dropout while it trains; the base's dropout in what is saved
text_lengths  from which length of a text on a model computes otherwise
worker_folders  the folders of an experiment, looked at by the user that a worker runs as
tiny_model    a model of random weights that learns in a minute: for the demo and for tests of engines
"""
