// The server's APIs as the page calls them.
import { at } from "./dom.js";
import { sidebar } from "./sidebar.js";

const KEY = "ipex-lookahead.key"; // of this tab only

/** The model that requests name; "" for the server's default. */
export const target = { model: "" };

const named = () => (target.model ? { model: target.model } : {});

/** An error that the server reported; `code` is the API's word for it. */
export class ServerError extends Error {
  constructor(message, code = "") {
    super(message);
    this.code = code;
  }
}

/** Put the API key of this tab into its field. */
export function restoreKey() {
  at("key").value = sessionStorage.getItem(KEY) || "";
}

/** Keep the API key for this tab. */
export function keepKey() {
  sessionStorage.setItem(KEY, at("key").value);
}

/** Show the field for the API key, and open what it is in. */
export function requestKey() {
  at("key-row").hidden = false;
  at("settings").open = true;
  sidebar(true);
}

/** Send a request, with a JSON body or a file as POST. Throws an Error if the server cannot be reached. */
export async function request(path, body, signal) {
  const key = at("key").value;
  const file = body instanceof Blob;
  const response = await fetch(path, {
    method: body ? "POST" : "GET",
    headers: { "content-type": file ? "application/pdf" : "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) },
    signal,
    ...(body ? { body: file ? body : JSON.stringify(body) } : {}),
  }).catch((error) => {
    throw error.name === "AbortError" ? error : new Error("the server cannot be reached; is it still running?");
  });
  if (response.status === 401) requestKey();
  return response;
}

/** Return the error of a response that is not OK. */
export async function failure(response) {
  const { error } = await response.json().catch(() => ({}));
  if (typeof error === "string") return new ServerError(error); // of Ollama's API
  return error ? new ServerError(error.message, error.code) : new Error(`the server answered ${response.status}`);
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
      else if (part.startsWith(": repeats")) yield { repeats: true };
      else if (/^: (loading|downloading|draining) /.test(part)) yield { loading: part.slice(2) };
    }
  }
}

/**
 * Stream an answer to `messages`.
 *
 * `onProgress` receives {prefill}, {loading}, {repeats}, or {text, thought, trace, ids}: what is new, with the runs of its draft trace
 * and its token ids. Returns {timings, reason}, `reason` being the API's finish_reason, or "repetition".
 */
export async function ask(messages, options, signal, onProgress) {
  const body = { ...named(), messages, stream: true, return_draft_trace: true, return_token_ids: true, ...options };
  const response = await request("v1/chat/completions", body, signal);
  if (!response.ok) throw await failure(response);
  let timings = null;
  let reason = null;
  try {
    for await (const event of events(response)) {
      if (event.error) throw new ServerError(event.error.message, event.error.code);
      if (event.prefill || event.loading || event.repeats) onProgress(event);
      const choice = event.choices && event.choices[0];
      if (choice) {
        const { content, reasoning_content: thought } = choice.delta;
        const { draft_trace: trace = [] } = event;
        const { token_ids: ids = [] } = choice;
        if (content || thought || trace.length || ids.length) {
          onProgress({ text: content || "", thought: thought || "", trace, ids });
        }
        reason = (choice.stop_reason === "repetition" ? choice.stop_reason : choice.finish_reason) || reason;
      }
      timings = event.timings || timings;
    }
  } catch (error) {
    throw error instanceof TypeError ? new Error("the connection to the server has ended") : error;
  }
  if (reason === null) throw new Error("the answer has broken off: the server ended the connection");
  return { timings, reason };
}

/** Return the text of a PDF file. */
export async function pdfText(file, signal) {
  const response = await request("pdf-text", file, signal);
  if (!response.ok) throw await failure(response);
  return (await response.json()).text;
}

/** Return the number of tokens of a text; Infinity if it is longer than any context. */
export async function textTokens(text, signal) {
  return counted(await request("tokenize", { ...named(), content: text, add_special: false }, signal));
}

/** Return the number of tokens of a conversation's prompt; Infinity if it is longer than the server reads. */
export async function promptTokens(messages, options) {
  return counted(await request("apply-template", { ...named(), messages, ...options }));
}

async function counted(response) {
  if (response.ok) return (await response.json()).tokens.length;
  const error = await failure(response);
  if (error.code === "context_length_exceeded") return Infinity;
  throw error;
}

/** Return an answer's statistics in one line; `before` is its number of tokens from earlier requests. */
export function summary({ timings }, before = 0) {
  if (!timings) return "";
  const parts = [`${timings.predicted_n + before} tokens`];
  if (!timings.repeats_itself) parts.push(`${timings.predicted_per_second.toFixed(1)} tok/s`);
  if (!timings.repeats_itself) parts.push(`${timings.tokens_per_step.toFixed(2)} tokens per step`);
  if (timings.draft_n) parts.push(`${timings.draft_n_accepted} of ${timings.draft_n} drafted tokens accepted`);
  parts.push(`prompt ${timings.prompt_n + timings.cache_n} tokens (${timings.cache_n} cached)`);
  if (timings.seed !== null && timings.seed !== undefined) parts.push(`seed ${timings.seed}`);
  return parts.join(" · ");
}

/** Return Markdown as nodes; null if the server does not render it, and it is shown as it was written. */
export async function render(text) {
  const response = await request("render", { text }).catch(() => null);
  return response && response.ok ? (await response.json()).nodes : null;
}
