// Shows the nodes that the server makes of Markdown: createElement and text nodes only, and no tag but these.
import { render } from "./api.js";
import { copyButton, element } from "./dom.js";
import { formula } from "./math.js";

const TAGS = new Set(
  ("a blockquote br code del em h3 h4 h5 h6 hr li math ol p pre span strong table tbody td th thead tr ul").split(" "),
);
const PAUSE = 120; // milliseconds between two renderings of what streams

function build(node) {
  if (typeof node === "string") return document.createTextNode(node);
  if (node.tag === "math") return formula(node.children[0], kind(node));
  const tag = TAGS.has(node.tag) ? node.tag : "span";
  const made = element(tag, node.class || "");
  let outer = made;
  if (tag === "a" && /^(https?|mailto):/i.test(node.href)) {
    made.href = node.href;
    made.rel = "noopener noreferrer";
    made.target = "_blank";
  }
  if (tag === "ol" && Number.isInteger(node.start)) made.start = node.start;
  if (tag === "table") outer = element("div", "table", made);
  if (tag === "pre") outer = code(made, node.language);
  if (tag === "table" || tag === "pre") {
    const scrolls = tag === "pre" ? made : outer;
    scrolls.tabIndex = 0; // what scrolls is reached by keyboard
    scrolls.setAttribute("role", "group");
    scrolls.setAttribute("aria-label", tag === "pre" ? "Code" : "Table");
  }
  outer.dataset.kind = kind(node);
  match(inside(outer), node.children);
  return outer;
}

function code(pre, language = "") {
  const copy = copyButton("Copy code", () => pre.textContent);
  pre.append(element("code"));
  return element("div", "code", element("div", "bar", element("span", "", language || "text"), copy), pre);
}

const kind = ({ tag, class: name, href, language, start, children }) =>
  JSON.stringify([tag, name, href, language, start, tag === "math" ? children : null]);

function inside(outer) {
  if (outer.classList.contains("code")) return outer.querySelector("code");
  return outer.classList.contains("table") && outer.tagName === "DIV" ? outer.firstChild : outer;
}

// Makes the children of `parent` from `from` on those nodes, and touches only what differs: nothing flickers, and what
// the reader has selected or scrolled stays so.
function match(parent, nodes, from = 0) {
  nodes.forEach((node, i) => {
    const old = parent.childNodes[from + i];
    if (typeof node === "string" && old && old.nodeType === Node.TEXT_NODE) {
      if (old.data.length < node.length && node.startsWith(old.data)) old.appendData(node.slice(old.data.length));
      else if (old.data !== node) old.data = node;
    } else if (typeof node !== "string" && old && old.dataset && old.dataset.kind === kind(node)) {
      if (node.tag !== "math") match(inside(old), node.children);
    } else if (old) old.replaceWith(build(node));
    else parent.append(build(node));
  });
  while (parent.childNodes.length > from + nodes.length) parent.lastChild.remove();
}

// A text that grows. Of what streams only the last block is rendered anew; at the end all is, for a late definition of
// a link may change what came before.
export class Markdown {
  constructor(target) {
    this.target = target;
    this.text = "";
    this.settled = 0; // characters of the blocks that stay as they are
    this.blocks = 0; // of them
    this.plain = false;
    this.working = null;
  }

  put(text) {
    this.text = text.replace(/\r\n?/g, "\n");
    this.working ||= this.work();
  }

  async work() {
    for (let shown = null; shown !== this.text && !this.plain; ) {
      shown = this.text;
      await this.draw(shown);
      await new Promise((done) => setTimeout(done, PAUSE));
    }
    this.working = null;
  }

  async draw(text) {
    const rest = text.slice(this.settled);
    const nodes = await render(rest);
    if (nodes === null) {
      this.asWritten();
      return;
    }
    match(this.target, nodes, this.blocks);
    const last = nodes[nodes.length - 1];
    if (nodes.length < 2 || !Number.isInteger(last.line)) return;
    this.settled += rest.split("\n").slice(0, last.line).join("\n").length + 1;
    this.blocks += nodes.length - 1;
  }

  asWritten() {
    this.plain = true;
    this.target.replaceChildren(element("div", "said", this.text));
  }

  async end(text) {
    this.put(text);
    await this.working;
    if (this.plain) {
      this.asWritten();
      return;
    }
    const nodes = this.settled === 0 ? null : await render(this.text);
    if (nodes !== null) match(this.target, nodes);
  }
}
