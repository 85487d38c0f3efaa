// A chat over /v1/chat/completions: this module connects the controls. Model output reaches the page as nodes and texts
// only, never as HTML.
import { keepKey, restoreKey } from "./api.js";
import { connectAttachments } from "./attach.js";
import { edit, fit, hooks, keep, open, redraw, run, send, state, statistics, tell, write } from "./chat.js";
import { at, button, disclosure, drawIcons, element, follow } from "./dom.js";
import { connect, list as listModels, model, hooks as modelHooks } from "./model.js";
import { restoreSettings } from "./settings.js";
import { isOpen, list, sidebar } from "./sidebar.js";
import * as talks from "./talks.js";
import { asJson, asMarkdown, download, importFile } from "./transfer.js";

const SUGGESTIONS = [
  ["Explain a concept", "Explain in simple words why the sky is blue."],
  ["Write code", "Write a Python function that merges two sorted lists, with a short example."],
  ["Draft an email", "Draft a short email that moves a meeting from Tuesday to Thursday."],
  ["Compare in a table", "Compare Python, C++ and Rust in a table: speed, safety, learning curve."],
];

const on = (id, kind, action) => at(id).addEventListener(kind, action);

function refresh() {
  list(state.talk, (id) => {
    open(id);
    sidebar(false);
  });
  const name = talks.name(state.talk);
  at("title").value = state.talk.title;
  at("title").placeholder = name;
  document.title = `${name} · ipex-lookahead`;
  if (model.several) listModels();
}

function fresh() {
  open();
  sidebar(false);
  at("prompt").focus();
}

function suggest([name, text]) {
  const made = button("", () => {
    at("prompt").value = text; // files stay attached
    send();
  });
  made.className = "suggestion";
  made.append(element("strong", "", name), element("span", "", text));
  return element("li", "", made);
}

async function take([file]) {
  at("import-file").value = "";
  if (!file) return;
  try {
    const found = await importFile(file);
    open(found[0].id);
    tell(`Imported ${found.length === 1 ? "1 conversation" : `${found.length} conversations`}.`);
  } catch (error) {
    tell(error.message);
  }
}

drawIcons();
hooks.changed = refresh;
hooks.fresh = fresh;
Object.assign(modelHooks, { tell, statistics, picked: () => redraw(), busy: () => state.running !== null });
hooks.toEnd = follow(at("main"), [at("talk"), at("race")], at("down"));
connectAttachments(tell);
const closeActions = disclosure(at("more"), at("actions"));
disclosure(at("about"), at("facts"));
at("suggestions").append(...SUGGESTIONS.map(suggest));

on("form", "submit", (event) => {
  event.preventDefault();
  send();
});
on("prompt", "keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
on("prompt", "input", fit);
on("stop", "click", () => state.running?.abort());
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (state.running) state.running.abort();
  else if (isOpen()) sidebar(false);
  else edit(null);
});
on("cancel", "click", () => edit(null));
on("menu", "click", () => sidebar(true));
on("close", "click", () => sidebar(false));
document.addEventListener("pointerdown", ({ target }) => isOpen() && !at("side").contains(target) && sidebar(false));
on("new", "click", fresh);
on("search", "input", refresh);
on("actions", "click", ({ target }) => target.closest("button") && closeActions());
on("race-it", "click", run);
on("delete", "click", () => {
  const { talk } = state;
  if (talk.messages.length && !confirm(`Delete "${talks.name(talk)}" from this browser?`)) return;
  talk.gone = true;
  talks.remove(talk);
  open((talks.all()[0] || {}).id);
});
on("title", "change", () => {
  state.talk.title = at("title").value.trim();
  state.talk.named = Boolean(state.talk.title);
  keep();
});
on("system", "change", () => {
  state.talk.system = at("system").value;
  keep();
});
/** Offer what `make` returns as a file; its errors become a notice. */
async function offer(make, ...file) {
  try {
    download(await make(), ...file);
  } catch (error) {
    tell(error.message);
  }
}

on("export-markdown", "click", () => offer(() => asMarkdown(state.talk), talks.name(state.talk), "md", "text/markdown"));
on("export-json", "click", () => offer(() => asJson(state.talk, model.name), talks.name(state.talk), "json", "application/json"));
on("export-all", "click", () => offer(() => asJson(talks.all(), model.name), "conversations", "json", "application/json"));
on("import", "click", () => at("import-file").click());
on("import-file", "change", ({ target }) => take([...target.files]));
on("key", "change", async () => {
  keepKey();
  await connect();
  redraw();
});
addEventListener("pagehide", () => state.running && keep()); // a partial answer outlives the page
restoreKey();
restoreSettings();
open(state.talk.id);
talks.sweepPictures();
connect();
if (matchMedia("(pointer: fine)").matches) at("prompt").focus(); // on a phone it would open the keyboard
