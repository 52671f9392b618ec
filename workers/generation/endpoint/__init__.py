"""The OpenAI-compatible endpoint: an unchanged agent program asks the model over HTTP, and what it drew is recorded.

In reading order:

call_error        `CallError`: why a call is not answered, as an OpenAI error object
turns             `TurnRecord`: the turns of a rollout as a tree, and the sequences that are trained
tool_calls        `ToolForm`: how a family of models writes calls of tools
answer_form       `AnswerForm`: the forms of thoughts and calls, by vLLM's names; calls in JSON, and written one by one
question          `Question`: what a call asks, whatever API it came by
offered_tools     `OfferedTools`: the tools of a call, and whether one must be called
shown_text        `ShownText`: what a client may be shown of an answer that is still drawn
conversation      `ChatQuestion`: a conversation, and its prompt from the ids of the turns before
api_call          `ApiCall`: a question with the form of its API; `Answered`: what was drawn for it
draw_request      `DrawRequest`: the fields that a chat and a bare completion share
chat_message      messages as the chat API has them
chat_completions  `POST /v1/chat/completions`
completions       `POST /v1/completions`
responses         `POST /v1/responses`
anthropic_messages  `POST /v1/messages`
rollout_calls     `RolloutCalls`: the calls of one rollout: bounds, retries, hang-ups
http_call         `HttpCall`: one HTTP request: its body, its hang-up, and the reply
call_reply        the four APIs by their paths, the reply to a call once its answer is kept, and the stream of one
request_span     `RequestSpan`: the span of one HTTP request, in the caller's trace or the rollout's
server            `ModelEndpoint`: the HTTP server and its API, and a capability for each rollout
"""
