// OpenAI's client for Node and Vercel's AI SDK, unchanged, against our server; see clients.py. Prints JSON.
import { readFileSync } from "node:fs";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import OpenAI from "openai";
import { z } from "zod";

const { url, key, clip, image, model, question } = JSON.parse(readFileSync(0));
const version = (name) => JSON.parse(readFileSync(`${import.meta.dirname}/node_modules/${name}/package.json`)).version;
const sides = ["left", "right"];
const parameters = { type: "object", properties: { side: { enum: sides } }, required: ["side"] };
const check = (right, what) => {
  if (!right) throw new Error(what);
};

function openaiWays() {
  const client = new OpenAI({ baseURL: url, apiKey: key, maxRetries: 0 });
  const content = [{ type: "video_url", video_url: { url: clip } }, { type: "text", text: question }];
  const given = { model, messages: [{ role: "user", content }], max_tokens: 24 };
  const tools = [{ type: "function", function: { name: "look", description: "Look to a side.", parameters } }];
  const ask = async () => (await client.chat.completions.create(given)).choices[0].message.content;
  return {
    ask: async () => check((await ask()).trim(), "no text"),
    stream: async () => {
      let text = "";
      for await (const chunk of await client.chat.completions.create({ ...given, stream: true }))
        text += chunk.choices[0]?.delta?.content ?? "";
      check(text === (await ask()), `the stream gave ${text}`);
    },
    tools: async () => {
      const must = { ...given, max_tokens: 300, tools, tool_choice: "required" };
      const { message } = (await client.chat.completions.create(must)).choices[0];
      const call = message.tool_calls[0];
      check(sides.includes(JSON.parse(call.function.arguments).side), call.function.arguments);
      const result = { role: "tool", tool_call_id: call.id, content: "A van is near." };
      await client.chat.completions.create({ ...given, tools, messages: [...given.messages, message, result] });
    },
    structured: async () => {
      const schema = { ...parameters, additionalProperties: false };
      const response_format = { type: "json_schema", json_schema: { name: "sight", strict: true, schema } };
      const found = await client.chat.completions.parse({ ...given, max_tokens: 300, response_format });
      check(sides.includes(found.choices[0].message.parsed.side), "the object is another");
    },
    responses: async () => {
      const stream = client.responses.stream({ model, input: question, max_output_tokens: 9 });
      const kinds = [];
      for await (const event of stream) kinds.push(event.type);
      check(kinds[0] === "response.created", kinds.join());
      check((await stream.finalResponse()).output_text, "no text");
    },
    cancel: async () => {
      const stream = await client.chat.completions.create({ ...given, stream: true });
      for await (const _ of stream) break;
      const leaving = new AbortController();
      const waiting = client.chat.completions.create(given, { signal: leaving.signal });
      setTimeout(() => leaving.abort(), 20);
      check(await waiting.then(() => false, (error) => error instanceof OpenAI.APIUserAbortError), "not aborted");
      await ask();
    },
    error: async () => {
      const refused = await client.chat.completions.create({ ...given, model: "other" }).catch((error) => error);
      check(refused instanceof OpenAI.NotFoundError && refused.code === "model_not_found", String(refused));
    },
  };
}

function vercelWays() {
  const provider = createOpenAICompatible({ name: "crossdraft", baseURL: url, apiKey: key, supportsStructuredOutputs: true });
  const given = { model: provider(model), maxRetries: 0, maxOutputTokens: 300 };
  const content = [{ type: "image", image: new URL(image) }, { type: "text", text: question }];
  const messages = [{ role: "user", content }];
  const look = tool({
    description: "Look to a side.",
    inputSchema: z.object({ side: z.enum(sides) }),
    execute: async ({ side }) => `A van is ${side}.`,
  });
  return {
    ask: async () => check((await generateText({ ...given, messages })).text.trim(), "no text"),
    stream: async () => {
      let text = "";
      for await (const part of streamText({ ...given, messages }).textStream) text += part;
      check(text === (await generateText({ ...given, messages })).text, `the stream gave ${text}`);
    },
    tools: async () => {
      const found = await generateText({
        ...given,
        prompt: question,
        tools: { look },
        toolChoice: "required",
        stopWhen: stepCountIs(2),
      });
      check(found.steps[0].toolResults[0].output.startsWith("A van is"), JSON.stringify(found.steps[0]));
      check(found.steps.length === 2, `${found.steps.length} steps`);
    },
    structured: async () => {
      const { object } = await generateObject({ ...given, prompt: question, schema: z.object({ side: z.enum(sides) }) });
      check(sides.includes(object.side), JSON.stringify(object));
    },
    cancel: async () => {
      const leaving = new AbortController();
      const waiting = generateText({ ...given, messages, abortSignal: leaving.signal });
      setTimeout(() => leaving.abort(), 20);
      check(await waiting.then(() => false, () => true), "not aborted");
      await generateText({ ...given, prompt: question });
    },
    error: async () => {
      const refused = await generateText({ ...given, model: provider("other"), prompt: "?" }).catch((error) => error);
      check(refused.statusCode === 404, String(refused));
    },
  };
}

async function tried(ways) {
  const found = {};
  for (const [name, way] of Object.entries(ways))
    found[name] = await way().then(() => "ok", (error) => `${error.name}: ${String(error.message).split("\n")[0]}`.slice(0, 300));
  return found;
}

const found = {
  "openai (Node)": { version: version("openai"), ways: await tried(openaiWays()) },
  "Vercel AI SDK": { version: version("ai"), ways: await tried(vercelWays()) },
};
console.log(JSON.stringify(found));
