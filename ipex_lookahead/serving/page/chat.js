// The open conversation: questions, answers, and what can be done with them.
//
// `ended` of an answer that is not complete: "length" (the limit of tokens), "loop" (the limit, and it repeats itself),
// "repetition" (the setting that stops loops), "full" (the end of the context), "stopped" (by the user), "broken" (an error).
import { grow, resumed, Shown } from "./answer.js";
import { ask, promptTokens, summary } from "./api.js";
import { attach, attached, reading, refusal } from "./attach.js";
import * as branches from "./branches.js";
import { announce, at, button, element } from "./dom.js";
import { pictures } from "./files.js";
import { blindness, model, refresh } from "./model.js";
import { race } from "./race.js";
import { drawnSeed, limit, mostTokens, sampling } from "./settings.js";
import * as talks from "./talks.js";

const FULL = "context_length_exceeded";
const READING = "A file is still being read.";
const STORAGE_FULL = "The browser's storage is full: this conversation is lost when the page is closed. Export or delete some.";

/** What is open; `running` stops the answer in progress, `editing` is the place of the message that is edited. */
export const state = { talk: talks.all()[0] || talks.fresh(), running: null, editing: null };

/** Set by page.js: the list of conversations may have changed; scroll to the end; open a new conversation. */
export const hooks = { changed: () => {}, toEnd: () => {}, fresh: () => {} };

/** Show a notice above the message; `actions` are buttons [text, handler]. */
export function tell(text, actions = []) {
  const buttons = element("span", "row", ...actions.map(([name, run]) => button(name, run)));
  const sentence = text.slice(0, 1).toUpperCase() + text.slice(1);
  at("notice").replaceChildren(...(text ? [element("span", "", sentence), buttons] : []));
}

/** Return what a model wrote in the open conversation, in words: its answers and their mean speed. */
export function statistics(name) {
  const own = state.talk.messages.filter((one) => one.model === name && one.speed);
  if (!own.length) return "";
  const sum = (key) => own.reduce((total, { speed }) => total + speed[key], 0);
  const speed = sum("ms") > 0 ? ` · ${((1000 * sum("tokens")) / sum("ms")).toFixed(1)} tok/s` : "";
  return `${own.length === 1 ? "1 answer" : `${own.length} answers`}${speed}`;
}

/** Store the open conversation. */
export function keep() {
  state.talk.when = Date.now();
  if (!talks.keep(state.talk)) tell(STORAGE_FULL);
  talks.keepPictures(state.talk).then((kept) => kept || tell(STORAGE_FULL));
  hooks.changed();
}

/** Open a conversation; without a known id, a new one. */
export function open(id = "") {
  if (state.running) state.running.abort();
  busy(null);
  state.talk = talks.all().find((one) => one.id === id) || talks.fresh();
  at("system").value = state.talk.system;
  at("race").hidden = true;
  tell("");
  edit(null);
  hooks.changed();
  redraw();
}

function show(message) {
  const { talk } = state;
  const place = () => talk.messages.indexOf(message);
  if (message.cut) at("talk").append(boundary(message));
  const shown = new Shown(message, {
    edit: () => edit(place()),
    again: () => again(place()),
    choose: (number) => {
      if (state.running) return;
      const where = place();
      branches.choose(talk, where, number);
      keep();
      redraw(where);
      items()[where].querySelector(".versions button:enabled").focus();
    },
  });
  explain(shown, message);
  return shown;
}

/** Return whether the chosen model made an answer, so that it can continue from its tokens. */
const isOwn = (message) => !message.model || !model.name || message.model === model.name;

/** The line above the first message that the model sees. */
function boundary(message) {
  return element("li", "boundary", "The model does not see the messages above this line.", button("Undo", () => {
    delete message.cut;
    keep();
    redraw();
  }));
}

/** Say under an answer why it is not complete, and offer what helps. */
function explain(shown, message) {
  const place = () => state.talk.messages.indexOf(message);
  const go = message.ids?.length && isOwn(message) ? [["Continue", () => goOn(place())]] : [];
  const made = message.limit ? `its limit of ${message.limit.toLocaleString("en")} tokens` : "the model's own limit";
  const full = [["New conversation", () => hooks.fresh()], ["Drop the oldest turns", () => drop(() => goOn(place()))]];
  const [text, actions] = {
    length: [`The answer reached ${made}.`, go],
    loop: [`The answer repeats itself and reached ${made}. Try another temperature or a larger model.`, go],
    repetition: ["The answer was stopped because it repeats itself. Try another temperature or a larger model.", go],
    full: [`The conversation fills the model's context${sized()}.`, full],
    stopped: ["Stopped.", go],
    broken: [go.length ? "The answer broke off." : "", go],
  }[message.ended] || ["", []];
  shown.tell(text, actions);
}

const sized = () => (model.context ? ` (${model.context.toLocaleString("en")} tokens)` : "");

/** Show the open conversation, anew from a place on. */
export function redraw(from = 0) {
  const kept = items()[from - 1];
  while (from ? kept.nextSibling : at("talk").hasChildNodes()) at("talk").lastChild.remove();
  for (const message of state.talk.messages.slice(from)) show(message);
  at("empty").hidden = state.talk.messages.length > 0;
  if (!from) hooks.toEnd();
}

/** Return the elements of the messages. */
const items = () => at("talk").querySelectorAll(":scope > :not(.boundary)");

/** Put text into the message box, and files above it. */
export function write(text, files = []) {
  at("prompt").value = text;
  attach(files);
  fit();
}

/** Fit the height of the message box to its text, where the browser does not. */
export function fit() {
  at("prompt").rows = Math.min(8, at("prompt").value.split("\n").length);
}

/** Edit the message at a place; null ends editing. */
export function edit(place) {
  if (state.running) return;
  const was = state.editing;
  mark(place);
  if (place === null) {
    if (was !== null) write("");
    return;
  }
  write(state.talk.messages[place].content, state.talk.messages[place].files);
  at("prompt").focus();
}

function mark(place) {
  state.editing = place;
  at("editing").hidden = place === null;
}

function busy(controller) {
  state.running = controller;
  const held = [at("send"), at("stop")].includes(document.activeElement);
  at("send").hidden = at("race-it").disabled = controller !== null;
  at("stop").hidden = controller === null;
  if (held) (controller === null ? at("send") : at("stop")).focus(); // a hidden button loses the focus
}

/** Run `work`, which can be stopped; `failed` receives an error that is not the user's stop. */
async function guarded(work, failed) {
  const controller = new AbortController();
  busy(controller);
  tell("");
  announce("The model is answering.");
  try {
    await work(controller.signal);
    announce("The answer is complete.");
  } catch (error) {
    if (state.running !== controller) return; // another conversation was opened
    announce("");
    if (error.name === "AbortError") announce("Stopped.");
    else failed(error);
  } finally {
    if (state.running === controller) busy(null);
  }
}

/** Stream into `message`, which `shown` shows, what the model answers to `sent`. Throws the error of the request. */
async function stream(talk, message, shown, sent, options, signal) {
  const before = options.echo ? message.ids.length : 0;
  let echo = Boolean(options.echo);
  let first = 0;
  let count = 0;
  let ended = "broken";
  const put = (came) => {
    if (came.prefill) {
      shown.count(`reading the prompt: ${came.prefill}`);
      return;
    }
    if (came.loading) {
      shown.count(came.loading);
      return;
    }
    if (came.repeats) {
      shown.tell("The answer repeats itself.", [["Stop", () => state.running?.abort()]]);
      return;
    }
    const { text, thought, ids, trace } = came;
    if (echo) {
      echo = false;
      message.trace = resumed(message.trace || [], trace.map((one) => one.text).join(""));
      Object.assign(message, { content: text, thought, ids });
      shown.restart(message.trace);
      shown.put({ text, thought, trace: [] });
      return;
    }
    first ||= performance.now();
    count += ids.length;
    message.content += text;
    message.thought += thought;
    message.ids.push(...ids);
    for (const { source, text: piece } of trace) grow(message.trace, source || "", piece);
    shown.put(came);
    const seconds = (performance.now() - first) / 1000;
    if (seconds > 0.2) shown.count(`${(count / seconds).toFixed(1)} tok/s`);
  };
  try {
    const found = await ask(sent, options, signal, put);
    const { timings } = found;
    message.figures = [...(model.several ? [message.model] : []), summary(found, before)].filter(Boolean).join(" · ");
    if (timings) message.speed = { tokens: timings.predicted_n, ms: timings.predicted_ms };
    if (timings && Number.isInteger(timings.seed)) message.made.seed = timings.seed;
    ended = { length: atLimit(timings, options.max_tokens), repetition: "repetition" }[found.reason] || "";
  } catch (error) {
    if (error.name === "AbortError") ended = "stopped";
    throw error;
  } finally {
    message.ended = ended;
    if (!ended) delete message.ids; // a complete answer is not continued
    shown.item.removeAttribute("aria-busy");
    explain(shown, message);
    if (talk === state.talk) keep();
    else talks.keep(talk);
    shown.end();
    if (model.several || !model.context) refresh(); // the request may have loaded the model
  }
}

/** Return which limit an answer reached. */
function atLimit(timings, most = 0) {
  if (!timings) return "length";
  const total = timings.cache_n + timings.prompt_n + timings.predicted_n;
  if ((model.context && total >= model.context) || (most && timings.predicted_n < most)) return "full";
  return timings.repeats_itself ? "loop" : "length";
}

/** Request an answer to a question, as a version of what is at `place`. */
async function answer(place, question, more = {}) {
  const { talk } = state; // another may be opened meanwhile
  const isNew = talk.messages[place] !== question;
  if (isNew) branches.add(talk, place, question);
  const made = { ...sampling(), ...more };
  const empty = { content: "", thought: "", trace: [], ids: [] };
  const message = { role: "assistant", ...empty, made, model: model.name, limit: mostTokens(), ended: "stopped" }; // until it has ended
  branches.add(talk, place + 1, message);
  at("race").hidden = true;
  redraw(isNew ? place : place + 1);
  const shown = begin(message);
  const undo = () => {
    branches.discard(talk, place + 1);
    if (isNew) branches.discard(talk, place);
    if (talk !== state.talk) return;
    redraw();
    if (!isNew || at("prompt").value || attached().length) return;
    write(question.content, question.files);
    if (place < talk.messages.length) mark(place);
  };
  const work = async (signal) => {
    try {
      await stream(talk, message, shown, await talks.asMessages(talk, place + 1), { ...made, ...limit() }, signal);
    } finally {
      if (!message.content && !message.thought && message.ended) undo(); // nothing came: all is as it was
      keep();
    }
  };
  await guarded(work, (error) => {
    const retry = () => {
      if (isNew && at("prompt").value === question.content) {
        write("");
        mark(null);
      }
      if (talk.messages[place + 1] === message) branches.discard(talk, place + 1);
      answer(place, question, more);
    };
    if (error.code === FULL) tellFull([...talk.messages.slice(0, place), question], retry);
    else tell(error.message, [["Try again", retry]]);
  });
}

/** Return the view of an answer in progress. */
function begin(message) {
  const { talk } = state;
  at("talk").lastElementChild.remove();
  const shown = show(message);
  shown.item.setAttribute("aria-busy", "true");
  shown.tell("");
  hooks.toEnd();
  return shown;
}

/** Say that the conversation no longer fits, with the numbers, and offer what helps. */
async function tellFull(messages, retry) {
  const { talk } = state;
  const count = (some) => talks.asMessages({ ...talk, messages: some }).then(promptTokens).catch(() => Infinity);
  const last = messages.slice(messages.findLastIndex((one) => one.role === "user"));
  const alone = (await count(last)) >= model.context;
  const total = await count(alone ? last : messages);
  const tokens = Number.isFinite(total) ? ` (${total.toLocaleString("en")} tokens)` : "";
  const shorten = last[0].files ? "Remove a file, or attach a part of it." : "Shorten it.";
  if (alone) tell(`This message${tokens} does not fit the model's context${sized()}. ${shorten}`);
  else tell(`This conversation${tokens} no longer fits the model's context${sized()}. Start a new one, or edit an earlier message.`, [
    ["New conversation", hooks.fresh], ["Drop the oldest turns", () => drop(retry, messages)],
  ]);
}

/** Hide the fewest of the oldest turns from the model that leave room for an answer; then run `next`. */
async function drop(next, messages = state.talk.messages) {
  const { talk } = state;
  const first = talks.firstSent({ messages });
  const starts = messages.flatMap(({ role }, i) => (role === "user" && i > first ? [i] : []));
  const fits = async (start) => {
    const sent = await talks.asMessages({ ...talk, messages: messages.slice(start) });
    const room = Math.min(mostTokens() || model.context / 8, model.context / 2);
    return (await promptTokens(sent)) + room <= model.context;
  };
  let [low, high] = [0, starts.length - 1];
  try {
    while (low < high) {
      const middle = (low + high) >> 1;
      if (await fits(starts[middle])) high = middle;
      else low = middle + 1;
    }
  } catch (error) {
    tell(error.message);
    return;
  }
  if (talk !== state.talk) return;
  if (high < 0) {
    tell("Only one question is left. Start a new conversation, or shorten the question.", [["New conversation", () => hooks.fresh()]]);
    return;
  }
  messages[starts[low]].cut = true;
  keep();
  redraw();
  next();
}

/** Continue an answer from its tokens: the text is the one without the limit. */
function goOn(place) {
  const { talk } = state;
  const message = talk.messages[place];
  if (state.running || !message?.ids?.length || !isOwn(message) || place !== talk.messages.length - 1) return;
  if (refuseUnseen(talk.messages)) return;
  const last = { role: "assistant", content: message.content, token_ids: message.ids };
  message.limit = mostTokens();
  if (message.ended === "repetition") message.made.stop_loops = false;
  const options = { ...message.made, ...limit(), continue_final_message: true, echo: true };
  const shown = begin(message);
  const work = async (signal) => stream(talk, message, shown, [...await talks.asMessages(talk, place), last], options, signal);
  guarded(work, (error) => {
    if (error.code === FULL) tellFull(talk.messages.slice(0, place + 1), () => goOn(place));
    else tell(error.message, [["Try again", () => goOn(place)]]);
  });
}

/** Write another version of the answer at a place. */
export function again(place) {
  const question = state.talk.messages[place - 1];
  if (state.running || question?.role !== "user" || refuseUnseen(state.talk.messages.slice(0, place))) return;
  answer(place - 1, question, { seed: drawnSeed() }); // with the same seed, the answer would be the same
}

/** Say that the model takes no pictures, if it takes none and these messages have some; return whether that is so. */
function refuseUnseen(messages) {
  const problem = messages.slice(talks.firstSent({ messages })).some((one) => pictures(one).length) && blindness();
  if (problem) tell(`This conversation has pictures, and ${problem}.`, [["New conversation", () => hooks.fresh()]]);
  return Boolean(problem);
}

/** Return the message in the box, with its files; null if there is none. */
function written() {
  const [content, files] = [at("prompt").value.trim(), attached()];
  return content || files.length ? { role: "user", content, ...(files.length ? { files } : {}) } : null;
}

/** Send the message in the box. */
export function send() {
  const { talk } = state;
  const question = written();
  if (state.running || !(question || reading())) return;
  const problem = reading() ? READING : refusal(attached());
  if (problem) return tell(problem);
  const place = state.editing === null ? talk.messages.length : state.editing;
  if (refuseUnseen([...talk.messages.slice(0, place), question])) return;
  edit(null);
  write("");
  answer(place, question);
}

/** Race over the message in the box, or over the last question. */
export function run() {
  const { talk } = state;
  if (state.running) return;
  if (reading()) return tell(READING);
  const question = written();
  const last = talk.messages.findLastIndex((one) => one.role === "user");
  if (!question && last < 0) {
    tell("Write a message first; a race sends it twice.");
    at("prompt").focus();
    return;
  }
  const messages = question ? [...talk.messages, question] : talk.messages.slice(0, last + 1);
  if (refuseUnseen(messages)) return;
  at("race").hidden = false;
  at("empty").hidden = true;
  hooks.toEnd();
  const options = { ...sampling(), ...limit() };
  const work = async (signal) => race(await talks.asMessages({ ...talk, messages }), options, signal);
  guarded(work, (error) => tell(error.message, [["Try again", run]]));
}
