// A chat over /v1/chat/completions. Model output reaches the page as nodes and texts only, never as HTML.
import { Shown, grow } from "./answer.js";
import { ask, askForKey, keepKey, request, restoreKey, summary } from "./api.js";
import { at, button, element, follow } from "./dom.js";
import { race } from "./race.js";
import * as talks from "./talks.js";

const SETTINGS = "ipex-lookahead.settings";
const KEPT = ["temperature", "most"];

let talk = talks.all()[0] || talks.fresh();
let running = null; // what stops the answer that is being made
let editing = null; // the place of the message that is being edited
let model = "";
const toEnd = follow(at("main"), [at("talk"), at("race")], at("down"));

// A notice above the message box. `again` adds a button.
function tell(text, again = null) {
  at("notice").replaceChildren(...(text ? [element("span", "", text)] : []), ...(again ? [button("Try again", again)] : []));
}

function announce(text) {
  at("status").textContent = text; // for those who do not see the answer come
}

function keep() {
  talk.when = Date.now();
  if (!talks.keep(talk)) tell("This browser keeps no more; the conversation ends with the page. Delete or export some.");
  list();
}

function list() {
  const known = talks.all();
  const shown = known.some((one) => one.id === talk.id) ? known : [talk, ...known];
  at("talks").replaceChildren(
    ...shown.map((one) => {
      const made = button(talks.name(one), () => open(one.id));
      if (one.id === talk.id) made.setAttribute("aria-current", "true");
      return element("li", "", made);
    }),
  );
  at("title").value = talk.title;
  at("title").placeholder = talks.name(talk);
  document.title = `${talks.name(talk)} · ipex-lookahead`;
}

function open(id = "") {
  if (running) running.abort();
  busy(null);
  talk = talks.all().find((one) => one.id === id) || talks.fresh();
  at("system").value = talk.system;
  at("race").hidden = true;
  tell("");
  edit(null);
  list();
  redraw();
  menu(false);
}

function menu(open) {
  document.body.classList.toggle("menu", open);
  at("menu").setAttribute("aria-expanded", String(open));
}

function show(message) {
  const place = () => talk.messages.indexOf(message);
  const user = message.role === "user";
  const action = user
    ? ["Edit", "Edit this message and ask again", () => edit(place())]
    : ["Ask again", "Ask again, for another answer in place of this one", () => again(place())];
  return new Shown(message, [action]);
}

function redraw() {
  at("talk").replaceChildren();
  for (const message of talk.messages) show(message);
  at("empty").hidden = talk.messages.length > 0;
  at("race-what").hidden = talk.messages.length > 0 && at("race").hidden;
  toEnd();
}

function write(text) {
  at("prompt").value = text;
  fit();
}

function fit() {
  at("prompt").rows = Math.min(8, at("prompt").value.split("\n").length);
}

function edit(place) {
  if (running) return;
  const was = editing;
  editing = place;
  at("editing").hidden = place === null;
  if (place === null) {
    if (was !== null) write("");
    return;
  }
  write(talk.messages[place].content);
  at("prompt").focus();
}

function options(more = {}) {
  const temperature = at("temperature").value;
  const most = Math.floor(Number(at("most").value));
  return {
    ...(temperature === "" ? {} : { temperature: Number(temperature) }), // else the model's own
    ...(most > 0 ? { max_tokens: most } : {}), // else what the context holds
    ...more,
  };
}

function busy(controller) {
  running = controller;
  const held = [at("send"), at("stop")].includes(document.activeElement);
  at("send").hidden = at("race-it").disabled = controller !== null;
  at("stop").hidden = controller === null;
  if (held) (controller === null ? at("send") : at("stop")).focus(); // the one hidden cannot keep it
}

async function guarded(work, retry) {
  const controller = new AbortController();
  busy(controller);
  tell("");
  announce("The model is answering.");
  try {
    await work(controller.signal);
    announce("The answer is complete.");
  } catch (error) {
    if (running !== controller) return; // another conversation was opened
    announce("");
    if (error.name === "AbortError") tell("Stopped.");
    else tell(error.message, retry);
  } finally {
    if (running === controller) busy(null);
  }
}

// Requests an answer to the first `place` messages and `text`, in place of what follows them.
async function answer(place, text, more = {}) {
  const mine = talk; // another may be opened meanwhile
  const before = mine.messages;
  const question = { role: "user", content: text };
  const message = { role: "assistant", content: "", thought: "", trace: [] };
  mine.messages = [...before.slice(0, place), question];
  const sent = talks.asMessages(mine);
  mine.messages.push(message);
  at("race").hidden = at("race-what").hidden = at("empty").hidden = true;
  for (const item of [...at("talk").children].slice(place)) item.remove();
  show(question);
  const shown = show(message);
  shown.item.setAttribute("aria-busy", "true");
  toEnd();
  let ended = "";
  let first = 0;
  let count = 0;
  const put = (came) => {
    if (came.prefill) {
      shown.figures.textContent = `reading the prompt: ${came.prefill}`;
      return;
    }
    first ||= performance.now();
    count += came.trace.length;
    message.content += came.text;
    message.thought += came.thought;
    for (const { source, text: piece } of came.trace) grow(message.trace, source || "", piece);
    shown.put(came);
    const seconds = (performance.now() - first) / 1000;
    if (seconds > 0.2) shown.figures.textContent = `${(count / seconds).toFixed(1)} tok/s`;
  };
  const work = async (signal) => {
    try {
      ended = summary(await ask(sent, options(more), signal, put));
    } catch (error) {
      ended = "broken off";
      if (!message.content && !message.thought) {
        mine.messages = before; // nothing has come: all is as it was, and what was written is given back
        if (mine === talk) {
          redraw();
          if (!at("prompt").value) write(text);
        }
      }
      throw error;
    } finally {
      message.figures = ended;
      shown.item.removeAttribute("aria-busy");
      if (mine === talk) keep();
      else talks.keep(mine);
      shown.end(ended);
    }
  };
  await guarded(work, () => {
    if (at("prompt").value === text) write("");
    talk.messages.includes(message) ? again(talk.messages.indexOf(message)) : answer(place, text, more);
  });
}

function again(place) {
  if (running || place < 1 || talk.messages[place - 1].role !== "user") return;
  const seed = crypto.getRandomValues(new Uint32Array(1))[0]; // a model with a fixed seed would repeat itself
  answer(place - 1, talk.messages[place - 1].content, { seed });
}

function send() {
  const text = at("prompt").value.trim();
  if (!text || running) return;
  const place = editing === null ? talk.messages.length : editing;
  edit(null);
  write("");
  answer(place, text);
}

function run() {
  const text = at("prompt").value.trim();
  if (running) return;
  if (!text) {
    tell("Write a message first; Race sends it twice.");
    at("prompt").focus();
    return;
  }
  const sent = [...talks.asMessages(talk), { role: "user", content: text }];
  at("race").hidden = at("race-what").hidden = false;
  toEnd();
  guarded((signal) => race(sent, options(), signal), run);
}

function colour() {
  document.body.classList.toggle("coloured", at("colour").checked);
  at("legend").hidden = !at("colour").checked;
}

function settings() {
  try {
    const kept = JSON.parse(localStorage.getItem(SETTINGS)) || {};
    for (const id of KEPT) at(id).value = kept[id] || "";
    at("colour").checked = Boolean(kept.colour);
  } catch {
    // nothing was kept
  }
}

function keepSettings() {
  const kept = Object.fromEntries(KEPT.map((id) => [id, at(id).value]));
  try {
    localStorage.setItem(SETTINGS, JSON.stringify({ ...kept, colour: at("colour").checked }));
  } catch {
    // they end with the page
  }
}

async function connect() {
  const response = await request("v1/models").catch(() => null);
  if (response && response.ok) {
    const found = (await response.json()).data[0];
    model = found.id;
    at("model").textContent = `${model} · ${found.meta.low_bit || found.meta.engine} · ${found.max_model_len} tokens`;
    at("temperature").placeholder = `the model's: ${found.meta.sampling.temperature}`;
    return;
  }
  if (response && response.status === 401) {
    askForKey();
    at("model").textContent = "this server requires an API key";
    return;
  }
  at("model").textContent = response && response.status === 503 ? "the model is being loaded…" : "no answer";
  setTimeout(connect, 2000);
}

const on = (id, kind, action) => at(id).addEventListener(kind, action);

on("form", "submit", (event) => {
  event.preventDefault();
  send();
});
on("prompt", "keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
on("prompt", "input", fit);
on("stop", "click", () => running && running.abort());
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (running) running.abort();
  else if (document.body.classList.contains("menu")) {
    menu(false);
    at("menu").focus();
  } else edit(null);
});
on("cancel", "click", () => edit(null));
on("race-it", "click", run);
on("menu", "click", () => menu(!document.body.classList.contains("menu")));
on("new", "click", () => {
  open();
  at("prompt").focus();
});
on("delete", "click", () => {
  if (!talk.messages.length || confirm(`Delete "${talks.name(talk)}" from this browser?`)) {
    talk.gone = true;
    talks.remove(talk);
    open((talks.all()[0] || {}).id);
  }
});
on("title", "change", () => {
  talk.title = at("title").value.trim();
  talk.named = Boolean(talk.title);
  keep();
});
on("system", "change", () => {
  talk.system = at("system").value;
  keep();
});
on("export-markdown", "click", () => talks.download(talks.asMarkdown(talk), talk, "md", "text/markdown"));
on("export-json", "click", () => talks.download(talks.asJson(talk, model), talk, "json", "application/json"));
on("colour", "change", () => {
  colour();
  keepSettings();
});
for (const id of KEPT) on(id, "change", keepSettings);
on("key", "change", async () => {
  keepKey();
  await connect();
  redraw();
});
addEventListener("pagehide", () => running && keep()); // what has come of an answer outlives the page
restoreKey();
settings();
colour();
open(talk.id);
connect();
if (matchMedia("(pointer: fine)").matches) at("prompt").focus(); // on a phone it would open the keyboard
