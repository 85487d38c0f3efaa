// A chat over /v1/chat/completions. What a model says reaches the page as text nodes only, never as HTML.
"use strict";

const STORE = "ipex-lookahead.conversation";
const KEY = "ipex-lookahead.key";
const HUES = 6;
const at = (id) => document.getElementById(id);

let messages = load();
let running = null;
const sources = [];

function load() {
  try {
    const found = JSON.parse(localStorage.getItem(STORE) || "[]");
    return Array.isArray(found) ? found.filter((m) => typeof m.content === "string" && typeof m.role === "string") : [];
  } catch {
    return [];
  }
}

function keep() {
  try {
    localStorage.setItem(STORE, JSON.stringify(messages));
  } catch {
    tell("this browser keeps nothing; the conversation ends with the page");
  }
}

function tell(text) {
  at("told").textContent = text;
}

function hue(source) {
  if (!sources.includes(source)) {
    sources.push(source);
    const item = document.createElement("li");
    const mark = document.createElement("span");
    mark.className = `drafted hue${(sources.length - 1) % HUES}`;
    mark.textContent = source;
    item.append(mark);
    at("legend").append(item);
  }
  return sources.indexOf(source) % HUES;
}

// Adds text in pieces; runs of one source share a span.
function show(target, trace) {
  for (const piece of trace) {
    const source = piece.source || "";
    let last = target.lastElementChild;
    if (!last || last.dataset.source !== source) {
      last = document.createElement("span");
      last.dataset.source = source;
      if (source) {
        last.className = `drafted hue${hue(source)}`;
        last.title = `drafted by ${source}`;
      }
      target.append(last);
    }
    last.append(piece.text);
  }
}

function bubble(role, trace = []) {
  const item = document.createElement("li");
  item.className = role;
  const who = document.createElement("span");
  who.className = "who";
  who.textContent = role === "user" ? "you" : "model";
  const said = document.createElement("div");
  said.className = "said";
  item.append(who, said);
  at("talk").append(item);
  show(said, trace);
  item.scrollIntoView({ block: "end" });
  return said;
}

function redraw() {
  at("talk").replaceChildren();
  for (const message of messages) {
    bubble(message.role, message.trace || [{ text: message.content, source: null }]);
  }
}

function headers() {
  const key = at("key").value;
  return { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) };
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

// Streams one answer into `target`; gives its text, its pieces and the server's figures.
async function ask(conversation, target, figures, more, signal) {
  const answer = { text: "", trace: [], timings: null };
  const response = await fetch("v1/chat/completions", {
    method: "POST",
    headers: headers(),
    signal,
    body: JSON.stringify({
      messages: conversation.map(({ role, content }) => ({ role, content })),
      stream: true,
      return_draft_trace: true,
      ...(at("temperature").value === "" ? {} : { temperature: Number(at("temperature").value) }), // else the model's
      max_tokens: Math.max(1, Number(at("most").value) || 256),
      ...more,
    }),
  });
  if (!response.ok) {
    if (response.status === 401) at("key-label").hidden = false;
    const body = await response.json().catch(() => ({}));
    throw new Error(body.error ? body.error.message : `the server answered ${response.status}`);
  }
  let first = 0;
  for await (const event of events(response)) {
    if (event.error) throw new Error(event.error.message);
    if (event.prefill) figures.textContent = `reading the prompt: ${event.prefill}`;
    if (event.draft_trace) {
      first = first || performance.now();
      show(target, event.draft_trace);
      answer.trace.push(...event.draft_trace);
      const seconds = (performance.now() - first) / 1000;
      if (seconds > 0.2) figures.textContent = `${(answer.trace.length / seconds).toFixed(1)} tok/s`;
    }
    if (event.timings) answer.timings = event.timings;
  }
  answer.text = answer.trace.map((piece) => piece.text).join("");
  figures.textContent = summary(answer.timings);
  return answer;
}

function summary(timings) {
  if (!timings) return "";
  const parts = [`${timings.predicted_n} tokens`, `${timings.predicted_per_second.toFixed(1)} tok/s`];
  parts.push(`${timings.tokens_per_step.toFixed(2)} tokens a step`);
  if (timings.draft_n) parts.push(`${timings.draft_n_accepted} of ${timings.draft_n} drafted accepted`);
  parts.push(`prompt ${timings.prompt_n + timings.cache_n} (${timings.cache_n} cached)`);
  return parts.join(" · ");
}

function busy(controller) {
  running = controller;
  at("send").disabled = at("race-it").disabled = controller !== null;
  at("stop").disabled = controller === null;
  if (controller === null) at("prompt").focus();
}

async function guarded(work) {
  const controller = new AbortController();
  busy(controller);
  tell("");
  try {
    await work(controller.signal);
  } catch (error) {
    tell(error.name === "AbortError" ? "stopped" : error.message);
  } finally {
    busy(null);
  }
}

function taken() {
  const text = at("prompt").value.trim();
  if (!text || running) return "";
  at("prompt").value = "";
  return text;
}

async function send() {
  const text = taken();
  if (!text) return;
  at("race").hidden = true;
  messages.push({ role: "user", content: text });
  bubble("user", [{ text, source: null }]);
  const said = bubble("assistant");
  await guarded(async (signal) => {
    try {
      const answer = await ask(messages, said, at("figures"), {}, signal);
      messages.push({ role: "assistant", content: answer.text, trace: answer.trace });
    } catch (error) {
      const content = said.textContent; // what has come is kept
      if (content) messages.push({ role: "assistant", content });
      else {
        messages.pop();
        redraw();
        at("prompt").value = text;
      }
      throw error;
    } finally {
      keep();
    }
  });
}

async function race() {
  const text = taken();
  if (!text) return;
  const conversation = [...messages, { role: "user", content: text }];
  at("race").hidden = false;
  at("verdict").textContent = "";
  for (const id of ["plain", "ahead"]) {
    at(`${id}-said`).replaceChildren();
    at(`${id}-figures`).textContent = "waiting";
  }
  const seed = crypto.getRandomValues(new Uint32Array(1))[0];
  await guarded(async (signal) => {
    const plain = await ask(conversation, at("plain-said"), at("plain-figures"), { seed, lookahead: 0 }, signal);
    const ahead = await ask(conversation, at("ahead-said"), at("ahead-figures"), { seed }, signal);
    at("verdict").textContent = await verdict(plain, ahead);
  });
  at("prompt").value = text;
}

async function verdict(plain, ahead) {
  if (plain.text !== ahead.text) {
    const same = [...plain.text].findIndex((character, i) => [...ahead.text][i] !== character);
    return `DIFFERENT from character ${same < 0 ? Math.min(plain.text.length, ahead.text.length) : same} on`;
  }
  const ratio = ahead.timings.predicted_per_second / plain.timings.predicted_per_second;
  let digest = "";
  if (crypto.subtle) {
    const bytes = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(ahead.text)));
    digest = ` · sha256 ${[...bytes.slice(0, 8)].map((b) => b.toString(16).padStart(2, "0")).join("")}…`;
  }
  return `identical ✓${digest}${Number.isFinite(ratio) ? ` · lookahead is ${ratio.toFixed(2)} times as fast` : ""}`;
}

function colour() {
  document.body.classList.toggle("coloured", at("colour").checked);
  at("legend").hidden = !at("colour").checked;
}

async function connect() {
  const response = await fetch("v1/models", { headers: headers() }).catch(() => null);
  if (response && response.ok) {
    const model = (await response.json()).data[0];
    at("model").textContent = `${model.id} · ${model.meta.low_bit || model.meta.engine} · ${model.max_model_len} tokens`;
    at("temperature").placeholder = model.meta.sampling.temperature;
    return;
  }
  if (response && response.status === 401) {
    at("key-label").hidden = false;
    at("model").textContent = "this server asks for an API key";
    return;
  }
  at("model").textContent = response && response.status === 503 ? "the model is being loaded…" : "no answer";
  setTimeout(connect, 2000);
}

at("form").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
at("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
at("stop").addEventListener("click", () => running && running.abort());
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && running) running.abort();
});
at("race-it").addEventListener("click", race);
at("colour").addEventListener("change", colour);
at("clear").addEventListener("click", () => {
  if (running) running.abort();
  messages = [];
  keep();
  redraw();
  at("figures").textContent = "";
  at("prompt").focus();
});
at("key").addEventListener("change", () => {
  sessionStorage.setItem(KEY, at("key").value);
  connect();
});
at("key").value = sessionStorage.getItem(KEY) || "";
colour();
redraw();
connect();
at("prompt").focus();
