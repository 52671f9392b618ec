"""The OpenAI-compatible endpoint: an unchanged agent program calls the model over HTTP, and every answer is recorded.

In reading order:

call_error         `CallError`: why a call is not answered, as an OpenAI error object
turn_record        `TurnRecord`: the turns of a rollout as a tree, and the sequences for training
tool_calls         `ToolForm`: how a family of models writes calls of tools
answer_form        `AnswerForm`: the forms of thoughts and tool calls, by vLLM's names
question           `Question`: the content of a call, independent of the API
offered_tools      `OfferedTools`: the tools of a call, and whether one must be called
shown_text         `ShownText`: the part of an unfinished answer fit to be sent to the client
conversation       `ChatQuestion`: a conversation, and a prompt from the ids of earlier turns
api_call           `ApiCall`: a question with an API's form of answers; `Answered`: the responses
draw_request       `DrawRequest`: the fields shared by chats and bare completions
chat_message       messages as the chat API has them
chat_completions   `POST /v1/chat/completions`
completions        `POST /v1/completions`
responses          `POST /v1/responses`
anthropic_messages `POST /v1/messages`
rollout_calls      `RolloutCalls`: the calls of one rollout: bounds, retries, hang-ups
http_call          `HttpCall`: one HTTP request: body, hang-up, and reply
call_reply         the four APIs by path; the reply to a call after its answer is recorded; streams
request_span       `RequestSpan`: the span of one HTTP request, in the caller's trace or the rollout's
server             `ModelEndpoint`: the HTTP server and its API, and a capability for each rollout
"""
