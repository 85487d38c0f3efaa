// The server's APIs as the page calls them.
import { at } from "./dom.js";

const KEY = "ipex-lookahead.key"; // of this tab only

export function restoreKey() {
  at("key").value = sessionStorage.getItem(KEY) || "";
}

export function keepKey() {
  sessionStorage.setItem(KEY, at("key").value);
}

export function askForKey() {
  at("key-row").hidden = false;
  document.body.classList.add("menu");
  at("menu").setAttribute("aria-expanded", "true");
}

export async function request(path, body, signal) {
  const key = at("key").value;
  const response = await fetch(path, {
    method: body ? "POST" : "GET",
    headers: { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) },
    signal,
    ...(body ? { body: JSON.stringify(body) } : {}),
  }).catch((error) => {
    throw error.name === "AbortError" ? error : new Error("the server cannot be reached; is it still running?");
  });
  if (response.status === 401) askForKey();
  return response;
}

async function failure(response) {
  const body = await response.json().catch(() => ({}));
  return new Error(body.error ? body.error.message : `the server answered ${response.status}`);
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    waiting += value;
    const parts = waiting.split("\n\n");
    waiting = parts.pop();
    for (const part of parts) {
      if (part.startsWith("data: ") && part !== "data: [DONE]") yield JSON.parse(part.slice(6));
      else if (part.startsWith(": prefill")) yield { prefill: part.slice(10) };
    }
  }
}

// Streams an answer to `messages`. `onProgress` receives {prefill}, or {text, thought, trace}. Returns the figures.
export async function ask(messages, options, signal, onProgress) {
  const body = { messages, stream: true, return_draft_trace: true, ...options };
  const response = await request("v1/chat/completions", body, signal);
  if (!response.ok) throw await failure(response);
  let timings = null;
  let reason = null;
  try {
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      if (event.prefill) onProgress({ prefill: event.prefill });
      const choice = event.choices && event.choices[0];
      if (choice) {
        const { content = "", reasoning_content: thought = "" } = choice.delta;
        const trace = event.draft_trace || [];
        if (content || thought || trace.length) onProgress({ text: content || "", thought, trace });
        reason = choice.finish_reason || reason;
      }
      timings = event.timings || timings;
    }
  } catch (error) {
    throw error instanceof TypeError ? new Error("the connection to the server has ended") : error;
  }
  if (reason === null) throw new Error("the answer has broken off: the server ended the connection");
  return { timings, reason };
}

export function summary({ timings, reason }) {
  if (!timings) return "";
  const parts = [`${timings.predicted_n} tokens`, `${timings.predicted_per_second.toFixed(1)} tok/s`];
  parts.push(`${timings.tokens_per_step.toFixed(2)} tokens a step`);
  if (timings.draft_n) parts.push(`${timings.draft_n_accepted} of ${timings.draft_n} drafted accepted`);
  parts.push(`prompt ${timings.prompt_n + timings.cache_n} (${timings.cache_n} cached)`);
  if (reason === "length") parts.push("ended by the limit of tokens");
  return parts.join(" · ");
}

// Markdown -> nodes; null where the server does not render it, and it is shown as it was written.
export async function render(text) {
  const response = await request("render", { text }).catch(() => null);
  return response && response.ok ? (await response.json()).nodes : null;
}
