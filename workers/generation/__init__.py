"""Generation: the seam between rollouts and a model. In reading order:

engine             `RolloutEngine`: the seam
sampling           the settings that tokens can be drawn with
response           an answer of the model: text, tokens, log-probabilities, spans
call_spans         the spans of calls of the model, rewards and agents
model              `Model`: chat and complete over any rollout engine, with derived ids and seeds
endpoint/          the same model over HTTP, for agent programs that know OpenAI's API
auxiliary/         models beside the one that is trained: with engines of their own, or served by somebody
continuation       the ids of a conversation that goes on
engine_definition  what a registered name leads to, and what an engine is opened with
engine_registry    the engines by name, and the opening of one for a stage
shared_devices     the memory of engines that compute on one device
"""
