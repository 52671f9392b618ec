"""Agent programs as their users write them, each over another SDK: an addition with a tool, then a question back.

`python programs.py NAME` in the environment of that SDK asks at OPENAI_BASE_URL with OPENAI_API_KEY, as any of them
would ask OpenAI, and prints the last answer. Nothing here knows of rftd.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

SYSTEM = "Add."
QUESTION = "20+22?"
AGAIN = "Are you sure?"
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
FUNCTION: dict[str, Any] = {"name": "add", "description": "The sum of two numbers.", "parameters": PARAMETERS}


def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


async def openai_chat() -> str:
    """The OpenAI SDK: a call, a streamed answer with its usage, a helper that gathers a stream."""
    from openai import AsyncOpenAI

    client = AsyncOpenAI()
    fixed: dict[str, Any] = {"model": "gpt-4o", "tools": [{"type": "function", "function": FUNCTION}]}
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
    first = await client.chat.completions.create(messages=messages, **fixed)
    message = first.choices[0].message
    (call,) = message.tool_calls
    result = str(add(**json.loads(call.function.arguments)))
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": result}]
    text = ""
    usage = None
    chunks = 0
    options = {"include_usage": True}
    async for chunk in await client.chat.completions.create(
        messages=messages, stream=True, stream_options=options, **fixed
    ):
        chunks += 1
        usage = chunk.usage or usage
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
    assert usage is not None and usage.completion_tokens == len(text) + 1
    assert chunks > 5, "the answer was not streamed as it was drawn"
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": AGAIN}]
    async with client.chat.completions.stream(messages=messages, **fixed) as stream:
        final = await stream.get_final_completion()
    return str(final.choices[0].message.content)


async def openai_responses() -> str:
    """The OpenAI SDK over the responses API, the second answer streamed."""
    from openai import AsyncOpenAI

    client = AsyncOpenAI()
    fixed: dict[str, Any] = {
        "model": "gpt-4o",
        "instructions": SYSTEM,
        "tools": [{"type": "function", **FUNCTION, "strict": True}],
        "store": False,
    }
    said: list[Any] = [{"role": "user", "content": QUESTION}]
    first = await client.responses.create(input=said, **fixed)
    (call,) = [item for item in first.output if item.type == "function_call"]
    result = str(add(**json.loads(call.arguments)))
    said += [*first.output, {"type": "function_call_output", "call_id": call.call_id, "output": result}]
    async with client.responses.stream(input=said, **fixed) as stream:
        second = await stream.get_final_response()
    said += [item.to_dict() for item in second.output]
    last = await client.responses.create(input=[*said, {"role": "user", "content": AGAIN}], **fixed)
    return str(last.output_text)


async def litellm_chat() -> str:
    """LiteLLM, the second answer streamed."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # asks no other host
    import litellm

    fixed: dict[str, Any] = {"model": "openai/gpt-4o", "tools": [{"type": "function", "function": FUNCTION}]}
    fixed |= {"api_base": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
    message = (await litellm.acompletion(messages=messages, **fixed)).choices[0].message
    (call,) = message.tool_calls
    result = str(add(**json.loads(call.function.arguments)))
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": result}]
    chunks = [chunk async for chunk in await litellm.acompletion(messages=messages, stream=True, **fixed)]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": AGAIN}]
    return str((await litellm.acompletion(messages=messages, **fixed)).choices[0].message.content)


async def agents_of(kind: str) -> str:
    """openai-agents: its runner calls the tool by itself; the first run is streamed."""
    from agents import (
        Agent,
        OpenAIChatCompletionsModel,
        OpenAIResponsesModel,
        Runner,
        function_tool,
        set_tracing_disabled,
    )
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    model = {"chat": OpenAIChatCompletionsModel, "responses": OpenAIResponsesModel}[kind]
    agent = Agent(
        name="adder",
        instructions=SYSTEM,
        model=model(model="gpt-4o", openai_client=AsyncOpenAI()),
        tools=[function_tool(add)],
    )
    first = Runner.run_streamed(agent, QUESTION)
    async for _ in first.stream_events():
        pass
    said = [*first.to_input_list(), {"role": "user", "content": AGAIN}]
    return str((await Runner.run(agent, said)).final_output)


async def anthropic_messages() -> str:
    """The Anthropic SDK, the second answer streamed."""
    from anthropic import AsyncAnthropic

    base = os.environ["OPENAI_BASE_URL"].removesuffix("/v1")
    client = AsyncAnthropic(base_url=base, api_key=os.environ["OPENAI_API_KEY"])
    tool = {"name": "add", "description": FUNCTION["description"], "input_schema": PARAMETERS}
    fixed: dict[str, Any] = {"model": "claude", "max_tokens": 200, "system": SYSTEM, "tools": [tool]}
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    first = await client.messages.create(messages=messages, **fixed)
    (call,) = [block for block in first.content if block.type == "tool_use"]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": str(add(**call.input))}
    messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    async with client.messages.stream(messages=messages, **fixed) as stream:
        second = await stream.get_final_message()
    messages += [{"role": "assistant", "content": second.content}, {"role": "user", "content": AGAIN}]
    return str((await client.messages.create(messages=messages, **fixed)).content[0].text)


async def verifiers_environment() -> str:
    """A `ToolEnv` of verifiers, which asks until no tool is called."""
    import verifiers as vf
    from datasets import Dataset
    from openai import AsyncOpenAI

    environment = vf.ToolEnv(
        tools=[add],
        dataset=Dataset.from_dict({"question": [QUESTION], "answer": ["42"]}),
        system_prompt=SYSTEM,
        rubric=vf.Rubric(funcs=[lambda completion, answer: float(answer in completion[-1]["content"])]),
    )
    found = await environment.evaluate(AsyncOpenAI(), "gpt-4o", num_examples=1, rollouts_per_example=1)
    completion = found["completion"] if isinstance(found, dict) else found.completion
    return str(completion[0][-1]["content"])


PROGRAMS = {
    "openai": openai_chat,
    "openai_responses": openai_responses,
    "litellm": litellm_chat,
    "openai_agents": lambda: agents_of("chat"),
    "openai_agents_responses": lambda: agents_of("responses"),
    "anthropic": anthropic_messages,
    "verifiers": verifiers_environment,
}

if __name__ == "__main__":
    sys.stdout.write(asyncio.run(PROGRAMS[sys.argv[1]]()))
