// Formulas as MathML. Temml (vendor/, MIT license) is loaded with the first one; it reads LaTeX into a tree, which is
// checked before it becomes nodes: known elements and attributes only, no address, nothing that leaves its place.
import { element } from "./dom.js";

const CHARACTERS = 4000; // formulas.py has the same limit
const NODES = 20_000;
const DEPTH = 100;
const SIZE = 40; // em: the longest that a part may be
const BACK = 10; // em: how far all parts together may be moved to the left
const DEFINITIONS = /\\(?:[egx]?def|global|long|let|futurelet|(?:re)?newcommand|providecommand)(?![A-Za-z])/;
const ELEMENTS = new Set(
  ("math menclose mfrac mi mmultiscripts mn mo mover mpadded mphantom mprescripts mroot mrow ms mspace msqrt mstyle msub" +
    " msubsup msup mtable mtd mtext mtr munder munderover none").split(" "),
);
const ATTRIBUTES = new Set(
  ("accent accentunder columnalign columnlines columnspacing depth display displaystyle fence form height largeop" +
    " linethickness lspace mathbackground mathcolor mathsize mathvariant maxsize minsize movablelimits notation rowlines" +
    " rowspacing rspace scriptlevel separator side stretchy symmetric voffset width").split(" "),
);
const STYLES = { "text-align: left;": ["textAlign", "left"], "font-weight:bold": ["fontWeight", "bold"] }; // by attribute
const UNITS = { em: 1, ex: 0.5, pt: 0.1, px: 0.06, "%": 0.01 };
const WITH_PICTURE = "tml-cancelto"; // its picture is not allowed here

let temml = null;
let loading = null;

function load() {
  loading ||= import("./vendor/temml.min.js").then((module) => {
    const style = element("link");
    style.rel = "stylesheet";
    style.href = "page/vendor/temml.css";
    document.head.append(style);
    temml = module.default;
  });
  return loading;
}

class Refused extends Error {}

function lengths(value, moved) {
  for (const [, number, unit] of String(value).matchAll(/(-?\d*\.?\d+)([a-z%]*)/g)) {
    const size = Number(number) * (UNITS[unit] ?? 1);
    if (Math.abs(size) > SIZE) throw new Refused("a part of the formula is too large");
    moved.back -= Math.min(0, size);
  }
  if (moved.back > BACK) throw new Refused("a part of the formula leaves its place");
}

// Checks a tree of Temml's, and moves its style attributes, which the page's policy ignores, to where nodes have them.
function check(node, counted = { nodes: 0, back: 0 }, depth = 0) {
  if (++counted.nodes > NODES || depth > DEPTH) throw new Refused("the formula is too large");
  if (typeof node.text === "string") return;
  if ((node.type && !ELEMENTS.has(node.type)) || "href" in node || "src" in node || !Array.isArray(node.children)) {
    throw new Refused("the formula has a part that is not shown here");
  }
  if ((node.classes || []).includes(WITH_PICTURE)) throw new Refused("\\cancelto is not shown here");
  const attributes = node.attributes || {};
  const known = STYLES[attributes.style];
  if (known) node.style[known[0]] = known[1];
  for (const name of Object.keys(attributes)) {
    if (!ATTRIBUTES.has(name)) delete attributes[name];
    else if (!/^(mathbackground|mathcolor)$/.test(name)) lengths(attributes[name], counted);
  }
  for (const [name, value] of Object.entries(node.style || {})) if (!/color/i.test(name)) lengths(value, counted);
  for (const child of node.children) check(child, counted, depth + 1);
}

function draw(made, source) {
  const ends = source.startsWith("$") && !source.startsWith("$$") ? 1 : 2;
  const latex = source.slice(ends, -ends);
  try {
    if (latex.length > CHARACTERS) throw new Refused("the formula is too long");
    if (DEFINITIONS.test(latex)) throw new Refused("the formula defines a macro");
    const options = { displayMode: displayed(source), throwOnError: true, trust: false, maxExpand: 1000 };
    const tree = temml.__renderToMathMLTree(latex, { ...options, maxSize: [SIZE, SIZE] });
    check(tree);
    made.replaceChildren(tree.toNode());
  } catch (error) {
    made.classList.add("source"); // it stays as it was written
    made.title = error.message.split("\n")[0];
  }
}

const displayed = (source) => source.startsWith("$$") || source.startsWith("\\[");

// The node of a formula, which is given with its delimiters; until Temml is loaded, and where it cannot be drawn, that
// text is shown.
export function formula(source, kind) {
  const made = element("span", displayed(source) ? "formula display" : "formula", source);
  made.dataset.kind = kind;
  if (displayed(source)) {
    made.tabIndex = 0; // what scrolls is reached by keyboard
    made.setAttribute("role", "group");
    made.setAttribute("aria-label", "Formula");
  }
  if (temml) draw(made, source);
  else load().then(() => draw(made, source), () => made.classList.add("source"));
  return made;
}
