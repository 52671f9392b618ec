"""Models of Hugging Face's layout, as files in a folder, before an engine loads them.

cached_tokens the keys and values of a text, computed from a model's settings
model_folder  whether a folder's files are present and whole, and the tokens that end a text
model_type    the content of config.json, for a model not loaded
pretrained    the model in a folder, without dropout in training; the base's dropout in saved folders
text_lengths  lengths of a text from which on a model computes differently
worker_folders  the folders of an experiment, checked with the rights of a worker's user
tiny_model    a model of random weights that learns in a minute: for the demo and for tests of engines
"""
