// Export and import of conversations.
import { sent, separated } from "./files.js";
import * as talks from "./talks.js";

const MOST_BYTES = 50 << 20;

/** Return a conversation as Markdown: the versions on the screen. */
export function asMarkdown(talk) {
  const parts = [`# ${talks.name(talk)}`];
  if (talk.system) parts.push("## System", talk.system);
  for (const message of talk.messages) {
    parts.push(message.role === "user" ? "## You" : "## Model");
    if (message.thought) parts.push(message.thought.replace(/^/gm, "> "));
    parts.push(sent(message));
  }
  return `${parts.join("\n\n")}\n`;
}

/** Return a conversation as an object: OpenAI's messages, each with its other versions. */
export function asObject(talk, model) {
  const system = talk.system.trim() ? [{ role: "system", content: talk.system }] : [];
  return { title: talks.name(talk), model, messages: [...system, ...talk.messages.map(exported)] };
}

function exported({ role, content, thought, figures, files, versions }) {
  return {
    role,
    content: sent({ content, files }),
    ...(files ? { files } : {}),
    ...(thought ? { reasoning_content: thought } : {}),
    ...(figures ? { figures } : {}),
    ...(versions ? { versions: { at: versions.at, tails: versions.tails.map((tail) => tail && tail.map(exported)) } } : {}),
  };
}

/** Return conversations as JSON text. */
export function asJson(given, model) {
  const made = Array.isArray(given) ? { conversations: given.map((one) => asObject(one, model)) } : asObject(given, model);
  return `${JSON.stringify(made, null, 2)}\n`;
}

/** Offer a text as a file. */
export function download(text, title, ending, kind) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: kind }));
  link.download = `${title.replace(/[^\p{L}\p{N} _-]+/gu, "").trim().slice(0, 40) || "conversation"}.${ending}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/**
 * Read a file of exported conversations and store them under new ids, so that no stored conversation changes.
 * Return them; throw an Error with the reason if the file cannot be read, or if the browser does not store all.
 */
export async function importFile(file) {
  if (file.size > MOST_BYTES) throw new Error(`"${file.name}" has ${file.size >> 20} MiB; at most ${MOST_BYTES >> 20} are read`);
  let given;
  try {
    given = JSON.parse(await file.text());
  } catch {
    throw new Error(`"${file.name}" is not valid JSON; choose a file that "Export as JSON" wrote`);
  }
  const several = Array.isArray(given) && given.some((one) => one && one.messages) ? given : given && given.conversations;
  const now = Date.now();
  const found = (Array.isArray(several) ? several : [given]).map((one, i) => imported(one, i, file.name, now));
  if (!found.length) throw new Error(`"${file.name}" has no conversation`);
  for (const [i, talk] of found.entries()) {
    if (talks.keep(talk)) continue;
    for (const one of found.slice(0, i)) talks.remove(one);
    throw new Error("nothing was imported: this browser has no room for these conversations. Delete some, then import again.");
  }
  return found;
}

function imported(given, number, file, now) {
  const messages = Array.isArray(given) ? given : given && given.messages;
  if (!Array.isArray(messages) || !messages.length) {
    throw new Error(`"${file}": conversation ${number + 1} has no list "messages"; choose a file that "Export as JSON" wrote`);
  }
  const system = messages.filter((one) => one && ["system", "developer"].includes(one.role));
  const rest = messages.filter((one) => !system.includes(one));
  const wrong = rest.findIndex((one) => !talks.isMessage(one));
  if (wrong >= 0 || !system.every((one) => typeof one.content === "string")) {
    const which = wrong >= 0 ? `message ${messages.indexOf(rest[wrong]) + 1}` : "the system message";
    throw new Error(`"${file}": ${which} of conversation ${number + 1} is not a text of the user or the assistant`);
  }
  const title = typeof given.title === "string" ? given.title.slice(0, 200) : "";
  return {
    ...talks.fresh(),
    when: now - number, // in the order of the file
    title,
    named: Boolean(title),
    system: system.map((one) => one.content).join("\n\n"),
    messages: rest.map(restored),
  };
}

function restored({ role, content, reasoning_content: thought, figures, files, versions }) {
  return {
    role,
    ...separated(content, files),
    ...(typeof thought === "string" ? { thought } : {}),
    ...(typeof figures === "string" ? { figures } : {}),
    ...(versions ? { versions: { at: versions.at, tails: versions.tails.map((tail) => tail && tail.map(restored)) } } : {}),
  };
}
