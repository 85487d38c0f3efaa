// The sidebar: the list of conversations, with a search over titles and messages.
import { at, element } from "./dom.js";
import * as talks from "./talks.js";

const NARROW = "(max-width: 50rem)"; // as in page.css
const AROUND = 24; // characters before the words that were found

/** Open or close the sidebar on a narrow screen. */
export function sidebar(open) {
  const was = isOpen();
  document.body.classList.toggle("menu", open);
  at("menu").setAttribute("aria-expanded", String(open));
  for (const one of document.querySelectorAll("header, main, form")) one.inert = open && matchMedia(NARROW).matches;
  if (was !== open && matchMedia(NARROW).matches) (open ? at("close") : at("menu")).focus();
}

/** Return whether the sidebar covers a narrow screen. */
export const isOpen = () => document.body.classList.contains("menu");

/** Show the conversations that contain the searched words; `current` is open, `onOpen` receives an id. */
export function list(current, onOpen) {
  const known = talks.all();
  const shown = known.some((one) => one.id === current.id) ? known : [current, ...known];
  const words = at("search").value.trim().toLowerCase();
  const found = shown.map((one) => [one, words ? matching(one, words) : ""]).filter(([, text]) => text !== null);
  at("talks").replaceChildren(...found.map(([one, text]) => entry(one, text, one.id === current.id, onOpen)));
  at("none").hidden = found.length > 0;
}

function entry(talk, text, current, onOpen) {
  const made = element("button", "", element("span", "", talks.name(talk)));
  if (text) made.append(element("span", "found", text));
  made.type = "button";
  made.title = talks.name(talk);
  made.addEventListener("click", () => onOpen(talk.id));
  if (current) made.setAttribute("aria-current", "true");
  return element("li", "", made);
}

/** Return the text around the searched words, "" if only the title contains them, null if nothing does. */
function matching(talk, words) {
  for (const { content } of talk.messages) {
    const place = content.toLowerCase().indexOf(words);
    if (place < 0) continue;
    const from = Math.max(0, place - AROUND);
    return `${from ? "…" : ""}${content.slice(from, place + words.length + 2 * AROUND)}`;
  }
  return talks.name(talk).toLowerCase().includes(words) ? "" : null;
}
