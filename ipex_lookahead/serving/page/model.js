// The models of the server: what is known of them, in the header and on the empty page, and the choice of one.
import { failure, request, requestKey, target } from "./api.js";
import { at, copyButton, element } from "./dom.js";
import { describeSettings } from "./settings.js";

const RETRY_MS = 2000;
const POLL_MS = 500;
const STORED = "ipex-lookahead.model";

/**
 * The chosen model, as `/v1/models` reports it; `several`: whether the server has others. `images` are its limits on
 * pictures, null if it takes none, undefined if that is not known, because it is not loaded.
 */
export const model = { name: "", context: 0, several: false, images: undefined };

/** Set by page.js: a notice; the statistics of a model in the open conversation; another model was chosen. */
export const hooks = { tell: () => {}, statistics: () => "", picked: () => {}, busy: () => false };

let listed = [];

/** Return why the chosen model takes no pictures, "" if it does or if that is not known. */
export function blindness() {
  if (model.images !== null) return "";
  const others = listed.filter(({ meta }) => meta?.images).map(({ id }) => id);
  const instead = others.length ? `choose one that does, such as ${others[0]}` : "serve a model with a vision part";
  return `${model.name} takes no pictures; ${instead}`;
}

/** Return the address that programs use for OpenAI's API. */
export const address = () => new URL("v1", document.baseURI).href;

/** Ask the server for its models until it answers, and show the chosen one. */
export async function connect() {
  const response = await request("v1/models").catch(() => null);
  if (response && response.ok) {
    listed = (await response.json()).data;
    const [first, wanted] = [!model.name, model.name || kept()];
    describe(listed.find(({ id }) => id === wanted) || listed[0]);
    if (first && model.several) hooks.picked(); // the shown answers may be those of others
    return;
  }
  if (response && response.status === 401) {
    requestKey();
    at("model").textContent = "API key required";
    at("summary").textContent = "enter it under Settings";
    return;
  }
  const loading = response && response.status === 503;
  at("model").textContent = loading ? "Loading the model…" : "No answer from the server";
  at("summary").textContent = "";
  setTimeout(connect, RETRY_MS);
}

/** Ask again for the models and their states. */
export async function refresh() {
  const response = await request("v1/models").catch(() => null);
  if (!response || !response.ok) return;
  listed = (await response.json()).data;
  const found = listed.find(({ id }) => id === model.name);
  if (found) describe(found);
}

function kept() {
  try {
    return localStorage.getItem(STORED) || "";
  } catch {
    return ""; // nothing is stored
  }
}

/** Use another model from now on, and load it; if it cannot be loaded, keep the earlier one. */
async function pick(name) {
  if (name === model.name) return;
  if (hooks.busy()) {
    hooks.tell("The model is answering. Stop the answer before you choose another model.");
    return;
  }
  const before = model.name;
  choose(name);
  const timer = setInterval(refresh, POLL_MS);
  const problem = await load(name).catch((error) => error);
  clearInterval(timer);
  if (problem && model.name === name) {
    choose(before);
    hooks.tell(`${name} cannot be used: ${problem.message}`);
  }
  await refresh();
}

function choose(name) {
  try {
    localStorage.setItem(STORED, name);
  } catch {
    // the choice ends with the page
  }
  describe(listed.find(({ id }) => id === name));
  hooks.picked();
}

/** Load a model: Ollama's request without a prompt. Return the error, if there is one. */
async function load(name) {
  if (listed.find(({ id }) => id === name)?.status?.value === "loaded") return null;
  const response = await request("api/generate", { model: name });
  return response.ok ? null : failure(response);
}

/** Return the state of a model in words; "" for a loaded one. */
function stated({ state, status = {} }) {
  const share = status.progress?.value;
  const words = { unloaded: "not loaded", failed: "could not be loaded", draining: "unloading", ready: "" };
  return words[state] ?? (state ? `${state}${share ? ` ${Math.round(100 * share)} %` : ""}` : "");
}

function describe(found) {
  const { id, max_model_len: context = 0, meta = {} } = found;
  Object.assign(model, { name: id, context, several: listed.length > 1, images: meta.images });
  target.model = id;
  const format = meta.low_bit || meta.engine || "";
  const tokens = context ? `${context.toLocaleString("en")} tokens` : "";
  at("model").textContent = id;
  at("summary").textContent = [format, tokens, stated(found)].filter(Boolean).join(" · ");
  at("no-template").hidden = meta.chat_template !== false;
  if (meta.sampling) describeSettings(meta);
  const rows = [
    ["Name", id, "Copy the model's name"],
    ["Adapter of", found.parent],
    ["API", address(), "Copy the API address"],
    ["Format", format],
    ["Context", tokens],
    ["Pictures", meta.images ? "yes" : ""],
    ["Engine", [meta.engine, meta.isa, meta.threads && `${meta.threads} threads`].filter(Boolean).join(", ")],
    ["Weights", meta.weight_bytes ? `${(meta.weight_bytes / 1e9).toFixed(2)} GB` : ""],
  ];
  at("facts-list").replaceChildren(...rows.filter(([, value]) => value).flatMap(([name, value, copy]) => [
    element("dt", "", name),
    element("dd", "", element("span", "", value), ...(copy ? [copyButton(copy, () => value)] : [])),
  ]));
  at("address").textContent = address();
  at("address").parentElement.replaceChildren(at("address"), copyButton("Copy the API address", address));
  list();
}

/** Show the models of the server, where there are several, with their states and statistics. */
export function list() {
  at("models").hidden = at("models-title").hidden = !model.several;
  const focused = document.activeElement?.dataset?.model;
  at("models").replaceChildren(...listed.map((one) => {
    const said = [stated(one) || "loaded", hooks.statistics(one.id)].filter(Boolean).join(" · ");
    const made = element("button", "", element("span", "", one.id), element("span", "state", said));
    made.type = "button";
    made.dataset.model = one.id;
    made.title = one.error || one.id;
    made.addEventListener("click", () => pick(one.id));
    if (one.id === model.name) made.setAttribute("aria-current", "true");
    return element("li", "", made);
  }));
  if (focused) at("models").querySelector(`[data-model="${CSS.escape(focused)}"]`)?.focus();
}
