// Conversations in the browser's storage, each under its own name, so that two tabs do not overwrite each other's.
// {id, title, named, system, when, messages: [{role, content, thought, trace, figures}]}; `trace` is the text as it was
// written, in runs [source, text] by what drafted them.
const PREFIX = "ipex-lookahead.talk.";
const TITLE = 60;

export function fresh() {
  const id = [...crypto.getRandomValues(new Uint32Array(2))].map((n) => n.toString(36)).join("");
  return { id, title: "", named: false, system: "", when: Date.now(), messages: [] };
}

const right = (message) =>
  message && ["user", "assistant"].includes(message.role) && typeof message.content === "string";

function read(name) {
  try {
    const { id, title, named, system, when, messages } = JSON.parse(localStorage.getItem(name));
    if (PREFIX + id !== name || !Array.isArray(messages)) return null;
    return {
      id,
      title: String(title || ""),
      named: Boolean(named),
      system: String(system || ""),
      when: Number(when) || 0,
      messages: messages.filter(right),
    };
  } catch {
    return null; // not ours, or spoiled; it stays where it is
  }
}

// All of them, the one last used first.
export function all() {
  try {
    const names = Object.keys(localStorage).filter((name) => name.startsWith(PREFIX));
    return names.map(read).filter(Boolean).sort((one, other) => other.when - one.when);
  } catch {
    return [];
  }
}

// Whether it could be kept. One in which nothing was said is not.
export function keep(talk) {
  if (talk.gone) return true; // deleted while it was answered
  if (!talk.messages.length && !talk.system && !talk.named) {
    remove(talk);
    return true;
  }
  const first = talk.messages.find((message) => message.role === "user");
  if (!talk.named && first) talk.title = titled(first.content);
  try {
    localStorage.setItem(PREFIX + talk.id, JSON.stringify(talk));
    return true;
  } catch {
    return false;
  }
}

function titled(text) {
  const line = [...text.trim().split("\n")[0].replace(/\s+/g, " ")];
  return line.length > TITLE ? `${line.slice(0, TITLE - 1).join("")}…` : line.join("");
}

export function remove(talk) {
  try {
    localStorage.removeItem(PREFIX + talk.id);
  } catch {
    // there is no storage
  }
}

export const name = (talk) => talk.title || "New conversation";

export function asMarkdown(talk) {
  const parts = [`# ${name(talk)}`];
  if (talk.system) parts.push("## System", talk.system);
  for (const message of talk.messages) {
    parts.push(message.role === "user" ? "## You" : "## Model");
    if (message.thought) parts.push(message.thought.replace(/^/gm, "> "));
    parts.push(message.content);
  }
  return `${parts.join("\n\n")}\n`;
}

// As the APIs take messages.
export function asMessages(talk) {
  const said = talk.messages.map(({ role, content }) => ({ role, content }));
  return talk.system.trim() ? [{ role: "system", content: talk.system }, ...said] : said;
}

export function asJson(talk, model) {
  const messages = asMessages(talk);
  const before = messages.length - talk.messages.length; // the system prompt
  talk.messages.forEach(({ thought }, i) => {
    if (thought) messages[before + i].reasoning_content = thought;
  });
  return `${JSON.stringify({ title: name(talk), model, messages }, null, 2)}\n`;
}

export function download(text, talk, ending, kind) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: kind }));
  link.download = `${name(talk).replace(/[^\p{L}\p{N} _-]+/gu, "").trim().slice(0, 40) || "conversation"}.${ending}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
