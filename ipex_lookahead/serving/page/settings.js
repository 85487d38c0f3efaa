// The settings in the sidebar, kept in the browser.
import { at } from "./dom.js";

const STORED = "ipex-lookahead.settings";
const NAMES = ["most", "temperature", "top_p", "seed", "thinking"];
const NUMBERS = ["temperature", "top_p"];
const SWITCHES = ["color", "stop_loops"];

/** Restore the settings and keep later changes. */
export function restoreSettings() {
  try {
    const kept = JSON.parse(localStorage.getItem(STORED)) || {};
    for (const name of NAMES) if (typeof kept[name] === "string") at(name).value = kept[name];
    for (const name of SWITCHES) if (typeof kept[name] === "boolean") at(name).checked = kept[name];
  } catch {
    // nothing is stored
  }
  showColors();
  for (const name of [...NAMES, ...SWITCHES]) at(name).addEventListener("change", store);
  at("color").addEventListener("change", showColors);
}

function store() {
  const kept = Object.fromEntries(NAMES.map((name) => [name, at(name).value]));
  for (const name of SWITCHES) kept[name] = at(name).checked;
  try {
    localStorage.setItem(STORED, JSON.stringify(kept));
  } catch {
    // the settings end with the page
  }
}

function showColors() {
  document.body.classList.toggle("colored", at("color").checked);
  at("legend").hidden = !at("color").checked;
}

/** Show which settings the model has: its defaults, and whether its template has a switch for thinking. */
export function describeSettings({ sampling, thinking_switch: switchable }) {
  for (const name of NUMBERS) at(name).placeholder = sampling[name];
  at("thinking-row").hidden = !switchable;
}

/** Return the longest answer in tokens; 0 means unlimited. */
export function mostTokens() {
  return Math.max(0, Math.floor(Number(at("most").value)) || 0);
}

/** Return the sampling fields of a request. Fields that are empty have the model's own values. */
export function sampling() {
  const found = at("stop_loops").checked ? { stop_loops: true } : {};
  for (const name of NUMBERS) if (at(name).value !== "") found[name] = Number(at(name).value);
  if (at("seed").value !== "") found.seed = Math.max(0, Math.floor(Number(at("seed").value)));
  else if (found.temperature) found.seed = drawnSeed(); // known here, so that a stopped answer can be continued
  if (at("thinking").value && !at("thinking-row").hidden) found.enable_thinking = at("thinking").value === "on";
  return found;
}

/** Return a random seed. */
export const drawnSeed = () => crypto.getRandomValues(new Uint32Array(1))[0];

/** Return the limit of an answer as a field of a request. */
export function limit() {
  return mostTokens() ? { max_tokens: mostTokens() } : {};
}
