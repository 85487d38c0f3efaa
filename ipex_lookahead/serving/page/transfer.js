// Export and import of conversations.
import { pictures, sent, separated } from "./files.js";
import * as images from "./images.js";
import * as talks from "./talks.js";

const MOST_BYTES = 200 << 20;

/** Return a conversation as Markdown: the versions on the screen. Pictures are in the text, or a line where one is lost. */
export async function asMarkdown(talk) {
  const parts = [`# ${talks.name(talk)}`];
  if (talk.system) parts.push("## System", talk.system);
  for (const message of talk.messages) {
    parts.push(message.role === "user" ? "## You" : "## Model");
    if (message.thought) parts.push(message.thought.replace(/^/gm, "> "));
    for (const { name, image } of pictures(message)) {
      const url = await images.dataUrl(image);
      parts.push(url ? `![${name.replace(/[\\[\]]/g, "\\$&")}](${url})` : `(${name}: not stored in this browser any more)`);
    }
    parts.push(sent(message));
  }
  return `${parts.filter(Boolean).join("\n\n")}\n`;
}

/** Return a conversation as an object: OpenAI's messages, each with its other versions. */
export async function asObject(talk, model) {
  const system = talk.system.trim() ? [{ role: "system", content: talk.system }] : [];
  return { title: talks.name(talk), model, messages: [...system, ...await all(talk.messages)] };
}

const all = (messages) => Promise.all(messages.map(exported));

async function exported({ role, content, thought, figures, files = [], versions }) {
  const text = sent({ content, files });
  const urls = await Promise.all(files.map(({ image }) => image && images.dataUrl(image)));
  const there = files.filter(({ image }, i) => !image || urls[i]).map(({ image, ...file }) => (
    image ? { ...file, image: { ...image, id: undefined } } : file
  )); // without pictures that the browser has lost
  const parts = urls.filter(Boolean).map((url) => ({ type: "image_url", image_url: { url } }));
  const tails = versions && await Promise.all(versions.tails.map((tail) => tail && all(tail)));
  return {
    role,
    content: parts.length ? [...parts, ...(text ? [{ type: "text", text }] : [])] : text,
    ...(there.length ? { files: there } : {}),
    ...(thought ? { reasoning_content: thought } : {}),
    ...(figures ? { figures } : {}),
    ...(versions ? { versions: { at: versions.at, tails } } : {}),
  };
}

/** Return conversations as JSON text. */
export async function asJson(given, model) {
  const several = Array.isArray(given) && (await Promise.all(given.map((one) => asObject(one, model))));
  const made = several ? { conversations: several } : await asObject(given, model);
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
  const each = Array.isArray(several) ? several : [given];
  const found = await Promise.all(each.map((one, i) => imported(one, i, file.name, now)));
  if (!found.length) throw new Error(`"${file.name}" has no conversation`);
  for (const talk of found) {
    if (talks.keep(talk) && (await talks.keepPictures(talk))) continue;
    for (const one of found) talks.remove(one);
    throw new Error("nothing was imported: this browser has no room for these conversations. Delete some, then import again.");
  }
  return found;
}

async function imported(given, number, file, now) {
  const whole = Array.isArray(given) ? given : given && given.messages;
  const messages = Array.isArray(whole) ? whole.map(unpacked) : [];
  if (!messages.length) {
    throw new Error(`"${file}": conversation ${number + 1} has no list "messages"; choose a file that "Export as JSON" wrote`);
  }
  const system = messages.filter((one) => one && ["system", "developer"].includes(one.role));
  const rest = messages.filter((one) => !system.includes(one));
  const wrong = rest.findIndex((one) => !talks.isMessage(one));
  if (wrong >= 0 || !system.every((one) => typeof one.content === "string")) {
    const which = wrong >= 0 ? `message ${messages.indexOf(rest[wrong]) + 1}` : "the system message";
    throw new Error(`"${file}": ${which} of conversation ${number + 1} is not a text of the user or the assistant, or has pictures that are not in the file`);
  }
  const title = typeof given.title === "string" ? given.title.slice(0, 200) : "";
  return {
    ...talks.fresh(),
    when: now - number, // in the order of the file
    title,
    named: Boolean(title),
    system: system.map((one) => one.content).join("\n\n"),
    messages: await Promise.all(rest.map(restored)),
  };
}

/** Return a message of a file with its text as `content`, and its pictures as `seen`; another value is returned as it is. */
function unpacked(one) {
  const tails = one?.versions?.tails;
  const opened = Array.isArray(tails) && tails.map((tail) => (Array.isArray(tail) ? tail.map(unpacked) : tail));
  const made = opened ? { ...one, versions: { ...one.versions, tails: opened } } : one;
  if (!Array.isArray(one?.content) || !one.content.length) return made;
  const named = Array.isArray(one.files) ? one.files.filter((file) => file?.image) : [];
  const [texts, seen] = [[], []];
  for (const part of one.content) {
    const picture = one.role === "user" && part?.type === "image_url" &&
      images.fileOf(part.image_url?.url, String(named[seen.length]?.name || `picture ${seen.length + 1}`));
    if (picture) seen.push(picture);
    else if (part?.type === "text" && typeof part.text === "string") texts.push(part.text);
    else return made; // it is refused
  }
  return { ...made, content: texts.join("\n\n"), seen };
}

async function restored({ role, content, reasoning_content: thought, figures, files = [], versions, seen = [] }) {
  const { files: read = [], content: said } = separated(content, files.filter((one) => !one.image));
  const taken = seen.map(async (file) => {
    const image = await images.take(file, file.type, { pixels: Infinity, bytes: Infinity }).catch((error) => {
      throw new Error(`"${file.name}" ${error.message}`);
    });
    return { name: file.name, size: file.size, tokens: null, image };
  });
  const both = [...await Promise.all(taken), ...read];
  const tails = versions && await Promise.all(versions.tails.map((tail) => tail && Promise.all(tail.map(restored))));
  return {
    role,
    content: said,
    ...(both.length ? { files: both } : {}),
    ...(typeof thought === "string" ? { thought } : {}),
    ...(typeof figures === "string" ? { figures } : {}),
    ...(versions ? { versions: { at: versions.at, tails } } : {}),
  };
}
