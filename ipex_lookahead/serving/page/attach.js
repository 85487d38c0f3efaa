// Attached files: the button, drag and drop, pasted files, and the list above the message box and in sent messages.
import { announce, at, element, iconButton } from "./dom.js";
import { bytes, read } from "./files.js";
import { show } from "./images.js";
import { model } from "./model.js";

const MAX_FILES = 20;

let held = []; // {name, size} of a file that is being read, with `reading` to stop it; then what files.js reads
let tell = () => {};

/** Return the files of the message that is being written. */
export const attached = () => held.filter((one) => !one.reading);

/** Put files in place of those of the message that is being written. */
export function attach(files = []) {
  for (const one of held) one.reading?.abort();
  held = [...files];
  draw();
}

/** Return whether a file is still being read. */
export const reading = () => held.some((one) => one.reading);

const tokens = (count) => (count === Infinity ? "too many tokens" : `${count.toLocaleString("en")} ${count === 1 ? "token" : "tokens"}`);
const described = ({ size, tokens: count, text, image }) => {
  if (image) return `${image.width} × ${image.height} · ${bytes(size)}`;
  return `${bytes(size)} · ${count === null ? `${text.length.toLocaleString("en")} characters` : tokens(count)}`;
};
const fits = (count) => !model.context || count === null || count < model.context;

/** Return an <img> of an attached picture; `about` shows what there is in its place if the browser has lost it. */
function pictured({ name, image }, about) {
  const made = element("img");
  made.alt = name;
  [made.width, made.height] = [image.width, image.height]; // the place that it takes is known before it is there
  show(made, image).then((there) => {
    if (there) return;
    made.remove();
    about.textContent = "not stored in this browser any more";
  });
  return made;
}

function draw() {
  at("attached").replaceChildren(...held.map((one) => {
    const remove = iconButton("close", `Remove ${one.name}`, () => {
      one.reading?.abort();
      held = held.filter((other) => other !== one);
      draw();
      at("prompt").focus();
    });
    const about = element("span", "about", one.reading ? "reading…" : described(one));
    const made = element("li", "chip", ...(one.image ? [pictured(one, about)] : []), element("span", "name", one.name), about, remove);
    made.classList.toggle("over", !one.reading && !fits(one.tokens));
    return made;
  }));
  at("attached").hidden = !held.length;
}

/** Attach files of the user; those that cannot be are named in a notice. */
async function add(files) {
  const problems = []; // in the order of the files
  const left = held.length + files.length > MAX_FILES ? `At most ${MAX_FILES} files can be attached to a message.` : "";
  await Promise.all([...files].slice(0, MAX_FILES - held.length).map(async (file, i) => {
    const one = { name: file.name, size: file.size, reading: new AbortController() };
    held.push(one);
    draw();
    try {
      const found = await read(file, one.reading.signal);
      held = held.map((other) => (other === one ? found : other));
      if (!fits(found.tokens)) problems[i] = tooLarge(found);
    } catch (error) {
      held = held.filter((other) => other !== one);
      if (error.name !== "AbortError") problems[i] = `${error.message}.`.replace(/([.!?])\.$/, "$1");
    }
    draw();
  }));
  announce(`Attached files: ${held.length}`);
  const notice = [...problems, left].filter(Boolean).join("\n");
  if (notice) tell(notice);
}

const tooLarge = ({ name, tokens: count }) =>
  `"${name}" (${tokens(count)}) does not fit the model's context (${tokens(model.context)}). Attach a part of it.`;

/** Return why no message can have these files, "" if one can. Whether the conversation fits, the server decides. */
export function refusal(files) {
  const large = files.find((one) => !fits(one.tokens));
  return large ? tooLarge(large) : "";
}

/** Return the entry of a sent picture: its thumbnail, which opens to the picture. */
function picture(one) {
  const about = element("span", "about", described(one));
  const summary = element("summary", "", pictured(one, about), element("span", "name", one.name), about);
  const folded = element("details", "chip picture", summary);
  folded.addEventListener("toggle", () => {
    folded.querySelector(":scope > img")?.remove();
    if (folded.open) folded.append(pictured(one, about));
  });
  return element("li", "", folded);
}

/** Return the list of a sent message's files; each opens to the text that the model received, or to the picture. */
export function list(files) {
  const made = element("ul", "files", ...files.map((one) => {
    if (one.image) return picture(one);
    const summary = element("summary", "", element("span", "name", one.name), element("span", "about", described(one)));
    const text = element("pre");
    text.tabIndex = 0;
    text.setAttribute("role", "region");
    text.setAttribute("aria-label", `Text of ${one.name}`);
    const folded = element("details", "chip", summary, text);
    folded.addEventListener("toggle", () => (text.textContent = folded.open ? one.text : ""));
    return element("li", "", folded);
  }));
  made.setAttribute("aria-label", "Attached files");
  return made;
}

/** Connect the controls; `notice` shows a sentence above the message box. */
export function connectAttachments(notice) {
  tell = notice;
  at("attach").addEventListener("click", () => at("files").click());
  at("files").addEventListener("change", async ({ target }) => {
    const files = [...target.files];
    target.value = ""; // the same file can be chosen again
    await add(files);
    at("prompt").focus();
  });
  at("prompt").addEventListener("paste", (event) => {
    const { files, types } = event.clipboardData;
    if (!files.length || (types.includes("text/plain") && types.includes("text/html"))) return; // table cells, with a picture
    event.preventDefault();
    add([...files]);
  });
  const carries = (event) => event.dataTransfer?.types.includes("Files");
  const dropping = (on) => document.body.classList.toggle("dropping", on);
  document.addEventListener("dragover", (event) => {
    if (!carries(event)) return;
    event.preventDefault();
    dropping(true);
  });
  document.addEventListener("dragleave", (event) => event.relatedTarget || dropping(false)); // it has left the window
  document.addEventListener("drop", (event) => {
    dropping(false);
    if (!carries(event)) return;
    event.preventDefault();
    add([...event.dataTransfer.files]);
  });
}
