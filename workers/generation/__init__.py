"""Generation: the seam between rollouts and a model. In reading order:

engine             `RolloutEngine`: the seam
sampling           checks of sampling settings, and which of them can be trained
response           an answer of the model: text, tokens, log-probabilities, spans
call_spans         the spans of calls of the model, rewards and agents
model              `Model`: chat and complete over any rollout engine, with derived ids and seeds
endpoint/          the same model over HTTP, for agent programs with clients of OpenAI's API
auxiliary/         models beside the trained one: on separate engines, or behind a service
continuation       the prompt ids of a continued conversation
engine_definition  what a rollout engine declares, and the parameters for opening one
engine_registry    the engines by name, and the opening of one for a stage
shared_devices     the memory of engines that compute on one device
"""
