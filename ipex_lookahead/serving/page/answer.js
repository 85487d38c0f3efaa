// One message on the screen: an answer with its thoughts folded, as Markdown or with its drafted tokens colored.
import { list } from "./attach.js";
import { numbered } from "./branches.js";
import { at, button, copyButton, element, iconButton } from "./dom.js";
import { sent } from "./files.js";
import { Markdown } from "./markdown.js";

const HUES = 6;
const SHORT = 3; // statistics that are shown before the line is opened
const sources = [];

function hue(source) {
  if (!sources.includes(source)) {
    sources.push(source);
    const mark = element("span", `drafted hue${(sources.length - 1) % HUES}`, source);
    at("legend").append(element("li", "", mark));
  }
  return sources.indexOf(source) % HUES;
}

/** Add text to the runs [source, text] of a trace. */
export function grow(trace, source, text) {
  const last = trace[trace.length - 1];
  if (last && last[0] === source) last[1] += text;
  else trace.push([source, text]);
}

/** Return the runs of a trace that `text` begins with, and what is left of the text as a run without a source. */
export function resumed(trace, text) {
  const found = [];
  let rest = text;
  for (const [source, piece] of trace) {
    if (!rest.startsWith(piece)) break;
    grow(found, source, piece);
    rest = rest.slice(piece.length);
  }
  if (rest) grow(found, "", rest);
  return found;
}

/** Add text to an element that shows it as it was written; runs of one source share a span. */
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

/** A message in the list. */
export class Shown {
  /**
   * @param message see talks.js.
   * @param actions {edit, again, choose}: handlers; `choose` receives the number of a version.
   */
  constructor(message, { edit, again, choose }) {
    this.message = message;
    this.user = message.role === "user";
    this.said = element("div", this.user ? "said" : "markdown");
    this.written = element("div", "said written");
    this.thought = element("div", "said");
    this.folded = element("details", "thought", element("summary", "", "Thoughts"), this.thought);
    this.figures = element("details", "figures", element("summary"), element("span"));
    this.rest = element("p", "rest");
    this.rest.setAttribute("role", "status");
    this.item = element("li", message.role, element("span", "unseen", this.user ? "You" : "Model"));
    const change = this.user
      ? iconButton("edit", "Edit this message", edit)
      : iconButton("again", "Write another answer", again);
    this.buttons = element("div", "actions", copyButton("Copy message", () => message.content || sent(message)), change);
    if (this.user) this.item.append(...(message.files ? [list(message.files)] : []), ...(message.content ? [this.said] : []));
    else this.item.append(this.folded, this.said, this.written, this.rest);
    this.foot = element("div", "foot", this.buttons);
    if (!this.user) this.foot.append(this.figures);
    this.item.append(this.foot);
    at("talk").append(this.item);
    this.choose = choose;
    this.versions();
    this.markdown = this.user ? null : new Markdown(this.said);
    if (this.user) this.said.textContent = message.content;
    else this.whole();
  }

  /** Show which of several versions this is, with arrows to the others. */
  versions() {
    const [number, count] = numbered(this.message);
    this.arrows?.remove();
    if (count < 2) return;
    const arrow = (name, label, to) => {
      const made = iconButton(name, label, () => this.choose(to));
      made.disabled = to < 1 || to > count;
      return made;
    };
    const [back, next] = [arrow("back", "Previous version", number - 1), arrow("next", "Next version", number + 1)];
    this.arrows = element("span", "versions", back, element("span", "", `${number}/${count}`), next);
    this.buttons.prepend(this.arrows);
  }

  /** Show a complete message. */
  whole() {
    const { content, thought, trace, figures } = this.message;
    for (const [source, text] of trace || [["", content]]) write(this.written, source, text);
    this.think(thought || "");
    this.count(figures || "");
    if (!content) return;
    this.said.append(element("div", "said", content)); // until it is rendered
    this.markdown.end(content);
  }

  /** Show the statistics: the most wanted ones, and the others once they are opened. */
  count(figures) {
    const parts = figures.split(" · ");
    const [summary, more] = this.figures.children;
    summary.textContent = parts.slice(0, SHORT).join(" · ");
    more.textContent = parts.slice(SHORT).join(" · ");
    this.figures.classList.toggle("short", parts.length <= SHORT);
    this.figures.hidden = !figures;
  }

  /** Say why the answer is not complete, or "", with buttons [text, handler]. */
  tell(text, actions = []) {
    this.rest.replaceChildren(...(text ? [element("span", "", text)] : []), ...actions.map(([name, run]) => button(name, run)));
    this.rest.hidden = !text;
  }

  think(more) {
    if (more) this.thought.append(more);
    this.folded.hidden = !this.thought.hasChildNodes();
  }

  /** Forget what was written, before the whole answer comes again; the Markdown stays until it differs. */
  restart(trace) {
    this.written.replaceChildren();
    this.thought.replaceChildren();
    for (const [source, text] of trace) write(this.written, source, text);
  }

  /** Add new text; the message has grown by it already. */
  put({ text, thought, trace }) {
    for (const { text: piece, source } of trace) write(this.written, source || "", piece);
    this.think(thought);
    const thinking = Boolean(thought) && !text;
    this.item.classList.toggle("thinking", thinking);
    this.folded.firstChild.textContent = thinking ? "Thinking…" : "Thoughts";
    if (text) this.markdown.put(this.message.content);
  }

  /** The answer has ended. */
  async end() {
    this.item.classList.remove("thinking");
    this.folded.firstChild.textContent = "Thoughts";
    this.count(this.message.figures || "");
    await this.markdown.end(this.message.content);
  }
}
