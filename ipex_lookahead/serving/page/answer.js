// One message as it is shown: an answer with its thoughts folded, as Markdown or with its drafted tokens coloured.
import { at, button, copied, element } from "./dom.js";
import { Markdown } from "./markdown.js";

const HUES = 6;
const sources = [];

function hue(source) {
  if (!sources.includes(source)) {
    sources.push(source);
    const mark = element("span", `drafted hue${(sources.length - 1) % HUES}`, source);
    at("legend").append(element("li", "", mark));
  }
  return sources.indexOf(source) % HUES;
}

// Adds [source, text] to the runs of a trace.
export function grow(trace, source, text) {
  const last = trace[trace.length - 1];
  if (last && last[0] === source) last[1] += text;
  else trace.push([source, text]);
}

// Adds text to what is shown as it was written; runs of one source share a span.
export function write(target, source, text) {
  let last = target.lastElementChild;
  if (!last || last.dataset.source !== source) {
    last = element("span", source ? `drafted hue${hue(source)}` : "");
    last.dataset.source = source;
    if (source) last.title = `drafted by ${source}`;
    target.append(last);
  }
  last.append(text);
}

// A message in the list of them. `actions` are [text, label, handler].
export class Shown {
  constructor(message, actions) {
    this.message = message;
    const user = message.role === "user";
    this.said = element("div", user ? "said" : "markdown");
    this.written = element("div", "said written");
    this.thought = element("div", "said");
    this.folded = element("details", "thought", element("summary", "", "Thoughts"), this.thought);
    this.figures = element("p", "figures");
    this.item = element("li", message.role, element("span", "who", user ? "You" : "Model"));
    this.buttons = element("div", "actions", button("Copy", (from) => copied(message.content, from), "Copy message"));
    for (const [said, label, action] of actions) this.buttons.append(button(said, action, label));
    if (user) this.item.append(this.said);
    else this.item.append(this.folded, this.said, this.written, this.figures);
    this.item.append(this.buttons);
    at("talk").append(this.item);
    this.markdown = user ? null : new Markdown(this.said);
    if (user) this.said.textContent = message.content;
    else this.whole();
  }

  whole() {
    const { content, thought, trace, figures } = this.message;
    for (const [source, text] of trace || [["", content]]) write(this.written, source, text);
    this.think(thought || "");
    this.figures.textContent = figures || "";
    if (!content) return;
    this.said.append(element("div", "said", content)); // until it is rendered
    this.markdown.end(content);
  }

  think(more) {
    if (more) this.thought.append(more);
    this.folded.hidden = !this.thought.hasChildNodes();
  }

  // New text, in the API's units; the message has grown by it already.
  put({ text, thought, trace }) {
    for (const { text: piece, source } of trace) write(this.written, source || "", piece);
    this.think(thought);
    this.item.classList.toggle("thinking", Boolean(thought) && !text);
    this.folded.firstChild.textContent = thought && !text ? "Thinking…" : "Thoughts";
    if (text) this.markdown.put(this.message.content);
  }

  async end(figures) {
    this.message.figures = figures;
    this.figures.textContent = figures;
    this.folded.firstChild.textContent = "Thoughts";
    await this.markdown.end(this.message.content);
  }
}
