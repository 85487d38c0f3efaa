// Files of a message: text files and pictures are read in the browser, PDF files by the server. A file is
// {name, size, text, tokens}, or {name, size, image, tokens} with a picture of images.js; `tokens` is null where the server
// did not count them. The model receives them in front of the message's text, pictures first.
import { pdfText, textTokens } from "./api.js";
import * as images from "./images.js";
import { blindness, model } from "./model.js";

const MAX_TEXT_BYTES = 4 << 20;
const MAX_PDF_BYTES = 24 << 20;
const MAX_NAME = 120;
const CONTROLS = /[\x00-\x08\x0e-\x1a\x1c-\x1f\x80-\x84\x86-\x9f]/g; // of binary data; tabs, line ends, form feeds and escapes are text
const MAX_CONTROLS = 0.002; // of all characters
const SAMPLE = 4096; // bytes

/** Return a number of bytes for people. */
export function bytes(count) {
  const [unit, size] = count < 1000 ? ["B", count] : count < 1e6 ? ["kB", count / 1e3] : ["MB", count / 1e6];
  return `${size < 10 && unit !== "B" ? size.toFixed(1) : Math.round(size)} ${unit}`;
}

/** Read a file of the user. Throws an Error with a sentence that names the file, quoted: `tell` begins with a capital. */
export async function read(file, signal) {
  const name = file.name.replace(/[\p{C}\p{Zl}\p{Zp}]+/gu, " ").trim().slice(-MAX_NAME) || "file";
  const head = await file.slice(0, 16).arrayBuffer().catch(() => null);
  if (head === null) throw new Error(`"${name}" cannot be read; a folder cannot be attached`);
  const type = images.typeOf(new Uint8Array(head));
  if (type) return picture(file, name, type);
  const other = images.otherKind(new Uint8Array(head));
  if (other) throw new Error(`"${name}" is a ${other} picture, which cannot be attached; convert it to JPEG or PNG`);
  const start = new TextDecoder().decode(head).slice(0, 5);
  const isPdf = start === "%PDF-" || /\.pdf$/i.test(name);
  const most = isPdf ? MAX_PDF_BYTES : MAX_TEXT_BYTES;
  if (file.size > most) throw new Error(`"${name}" has ${bytes(file.size)}; at most ${bytes(most)} can be attached`);
  if (file.size === 0) throw new Error(`"${name}" is empty`);
  const text = isPdf ? await extracted(file, name, signal) : decoded(new Uint8Array(await file.arrayBuffer()));
  if (text === null) {
    throw new Error(`"${name}" is not a text file (UTF-8 or UTF-16), a PDF or a picture, so it cannot be attached`);
  }
  if (!text.trim()) throw new Error(`"${name}" has no text`);
  const tokens = await textTokens(text, signal).catch(() => null);
  return { name, size: file.size, text, tokens };
}

async function picture(file, name, type) {
  const problem = blindness();
  if (problem) throw new Error(`"${name}" cannot be attached: ${problem}`);
  try {
    return { name, size: file.size, tokens: null, image: await images.take(file, type, model.images) };
  } catch (error) {
    throw new Error(`"${name}" ${error.message}`);
  }
}

async function extracted(file, name, signal) {
  try {
    return await pdfText(file, signal);
  } catch (error) {
    throw error.name === "AbortError" ? error : new Error(`"${name}": ${error.message}`);
  }
}

/** Return the text of a file's bytes; null if they are not text. */
export function decoded(data) {
  const marked = data[0] === 0xff && data[1] === 0xfe ? "utf-16le" : data[0] === 0xfe && data[1] === 0xff ? "utf-16be" : "";
  for (const encoding of marked ? [marked] : ["utf-8", ...wide(data)]) {
    try {
      const text = new TextDecoder(encoding, { fatal: true }).decode(data);
      const controls = (text.match(CONTROLS) || []).length;
      if (!text.includes("\0") && controls <= text.length * MAX_CONTROLS) return text.replace(/\r\n?/g, "\n");
    } catch {
      // not in this encoding
    }
  }
  return null;
}

/** Return the UTF-16 encodings that zeros in the first bytes speak for: of ASCII every second byte is zero. */
function wide(data) {
  const zeros = [0, 0];
  const count = Math.min(data.length, SAMPLE);
  for (let i = 0; i < count; i++) if (data[i] === 0) zeros[i & 1]++;
  if (data.length % 2 || Math.max(...zeros) < count / 4 || Math.min(...zeros) > 0) return [];
  return zeros[1] > zeros[0] ? ["utf-16le"] : ["utf-16be"];
}

/** Return a message's text as the model receives it: each file with its name in a code block, then what was written. */
export function sent({ content, files = [] }) {
  return [...files.filter(({ image }) => !image).map(block), content].filter(Boolean).join("\n\n");
}

/** Return the files of a message that are pictures. */
export const pictures = ({ files = [] }) => files.filter(({ image }) => image);

/** Return a message's content as the APIs take it: its text, or a list of its pictures and its text. */
export async function content(message) {
  const [seen, text] = [pictures(message), sent(message)];
  if (!seen.length) return text;
  const parts = await Promise.all(seen.map(async ({ name, image }) => {
    const url = await images.dataUrl(image);
    if (url === null) throw new Error(`"${name}" is not stored in this browser any more. Edit its message and attach it again.`);
    return { type: "image_url", image_url: { url } };
  }));
  return [...parts, ...(text ? [{ type: "text", text }] : [])];
}

function block({ name, text }) {
  const longest = Math.max(2, ...(text.match(/`+/g) || []).map((run) => run.length));
  const fence = "`".repeat(longest + 1); // longer than any in the file, which therefore cannot end the block
  return `File: ${name}\n${fence}\n${text.replace(/\n+$/, "")}\n${fence}`;
}

/** Split a text that `sent` made with these files into {content, files}; another text has no files. */
export function separated(content, files) {
  if (!files?.length || !isFiles(files)) return { content };
  const before = sent({ content: "", files });
  if (content === before) return { content: "", files };
  return content.startsWith(`${before}\n\n`) ? { content: content.slice(before.length + 2), files } : { content };
}

/** Return whether a stored value can be a message's files. */
export function isFiles(files) {
  return files === undefined || (Array.isArray(files) && files.every(
    (one) => one && typeof one.name === "string" && Number.isFinite(one.size) &&
      (one.image ? images.isPicture(one.image) : typeof one.text === "string") &&
      (one.tokens === null || Number.isFinite(one.tokens)),
  ));
}
