// Conversations in the browser's storage, each under its own name, so that two tabs do not overwrite each other's.
// {id, title, named, system, when, messages}; of a message:
//   role, content, thought
//   trace: the text as it was written, in runs [source, text] by the source of the draft
//   figures: statistics; ended: why the answer is not complete, see chat.js
//   ids, made: tokens and request options of an answer that can be continued
//   cut: the model does not see the messages before this one
//   files: attached ones, see files.js
//   versions: see branches.js
import { content, isFiles, pictures } from "./files.js";
import * as images from "./images.js";

const PREFIX = "ipex-lookahead.talk.";
const TITLE = 60;

/** Return a new, empty conversation. */
export function fresh() {
  const id = [...crypto.getRandomValues(new Uint32Array(2))].map((n) => n.toString(36)).join("");
  return { id, title: "", named: false, system: "", when: Date.now(), messages: [] };
}

/** Return whether a value can be shown as a message, with all of its versions. */
export function isMessage(one) {
  if (!one || !["user", "assistant"].includes(one.role) || typeof one.content !== "string" || !isFiles(one.files)) return false;
  const versions = one.versions;
  return versions === undefined || (Array.isArray(versions?.tails) && versions.tails.every(
    (tail, i) => (i === versions.at ? tail === null : Array.isArray(tail) && tail.length > 0 && tail.every(isMessage)),
  ) && versions.tails[versions.at] === null);
}

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
      messages: messages.filter(isMessage),
    };
  } catch {
    return null; // of another program, or damaged: it is not touched
  }
}

/** Return all conversations, the last used first. */
export function all() {
  try {
    const names = Object.keys(localStorage).filter((name) => name.startsWith(PREFIX));
    return names.map(read).filter(Boolean).sort((one, other) => other.when - one.when);
  } catch {
    return [];
  }
}

/** Store a conversation; return whether the browser took it. An empty one is not stored. */
export function keep(talk) {
  if (talk.gone) return true; // deleted during an answer
  if (!talk.messages.length && !talk.system && !talk.named) {
    remove(talk);
    return true;
  }
  const first = talk.messages.find((message) => message.role === "user");
  if (!talk.named && first) talk.title = titled(first.content || first.files?.[0]?.name || "");
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

/** Return the pictures of a conversation, those of its other versions included. */
export function picturesOf(talk) {
  const inside = (messages) => messages.flatMap((one) => [
    ...pictures(one).map(({ image }) => image), ...(one.versions?.tails || []).flatMap((tail) => inside(tail || [])),
  ]);
  return inside(talk.messages);
}

/** Store the pictures of a conversation; return whether the browser took them. */
export const keepPictures = async (talk) => Boolean(talk.gone) || images.keep(picturesOf(talk));

/** Remove stored pictures that no conversation has any more, such as those of replaced versions. */
export async function sweepPictures() {
  try {
    const names = Object.keys(localStorage).filter((name) => name.startsWith(PREFIX));
    await images.sweep(names.map((name) => localStorage.getItem(name)).join("\n"));
  } catch {
    // there is no storage
  }
}

/** Remove a conversation from the storage. */
export function remove(talk) {
  images.remove(picturesOf(talk));
  try {
    localStorage.removeItem(PREFIX + talk.id);
  } catch {
    // there is no storage
  }
}

/** Return the name of a conversation in lists. */
export const name = (talk) => talk.title || "New conversation";

/** Return the position of the first message that the model sees. */
export const firstSent = (talk) => Math.max(0, talk.messages.findLastIndex((message) => message.cut));

/**
 * Return a conversation's first `count` messages as the APIs take them, without those that were dropped. Throws an Error if
 * the browser has lost a picture.
 */
export async function asMessages(talk, count = talk.messages.length) {
  const shown = talk.messages.slice(firstSent(talk), count);
  const messages = await Promise.all(shown.map(async (one) => ({ role: one.role, content: await content(one) })));
  return talk.system.trim() ? [{ role: "system", content: talk.system }, ...messages] : messages;
}
