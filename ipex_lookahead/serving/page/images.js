// Pictures of messages. A picture is {id, type, width, height}; its contents are in the browser's database under the id,
// because they are larger than what fits next to the conversations, and they are sent as they were attached.
const DATABASE = "ipex-lookahead.images";
const STORE = "images";
const TYPES = {
  "image/jpeg": (data) => starts(data, 0xff, 0xd8, 0xff),
  "image/png": (data) => starts(data, 0x89, 0x50, 0x4e, 0x47),
  "image/gif": (data) => starts(data, 0x47, 0x49, 0x46, 0x38),
  "image/webp": (data) => text(data, 0, 4) === "RIFF" && text(data, 8, 12) === "WEBP",
  "image/bmp": (data) => text(data, 0, 2) === "BM" && data[6] + data[7] + data[8] + data[9] === 0,
};
const OTHERS = {
  HEIC: (data) => text(data, 4, 8) === "ftyp" && /^(hei|hev|mif1|msf1)/.test(text(data, 8, 12)),
  AVIF: (data) => text(data, 4, 8) === "ftyp" && /^avi[fs]/.test(text(data, 8, 12)),
  TIFF: (data) => ["II*\0", "MM\0*"].includes(text(data, 0, 4)),
  "JPEG XL": (data) => starts(data, 0xff, 0x0a) || text(data, 4, 8) === "JXL ",
};

/** What a model accepts that does not report its limits. */
const LIMITS = { bytes: 32 << 20, pixels: 64e6 };

const held = new Map(); // id -> {blob, url, stored} of the pictures that this page has used
let opened = null;

const starts = (data, ...bytes) => bytes.every((byte, i) => data[i] === byte);
const text = (data, from, to) => String.fromCharCode(...data.slice(from, to));
const named = (kinds, data) => Object.keys(kinds).find((name) => kinds[name](data)) || "";

/** Return the media type of a supported picture by the first bytes of the file, "" for other files. */
export const typeOf = (head) => named(TYPES, head);

/** Return the name of a kind of picture that no model takes, "" for other files. */
export const otherKind = (head) => named(OTHERS, head);

/** Return whether a value can be a picture of a stored message, or of an exported one, which has no id. */
export const isPicture = (one) =>
  Boolean(one) && Object.hasOwn(TYPES, one.type) && Number.isFinite(one.width) && Number.isFinite(one.height) &&
  ["string", "undefined"].includes(typeof one.id);

/** Take a file as a picture; `limits` are the model's. Throws an Error with the reason, without the name of the file. */
export async function take(file, type, limits) {
  const { bytes: most, pixels } = { ...LIMITS, ...limits };
  if (file.size > most) throw new Error(`has ${millions(file.size)} MB; a picture can have at most ${millions(most)} MB`);
  const blob = new Blob([file], { type });
  const url = URL.createObjectURL(blob);
  try {
    const { width, height } = await sized(url);
    if (width * height > pixels) {
      throw new Error(`has ${width} × ${height} pixels; a picture can have at most ${millions(pixels)} million pixels`);
    }
    const id = [...crypto.getRandomValues(new Uint32Array(4))].map((n) => n.toString(36)).join("-");
    held.set(id, { blob, url, stored: null });
    return { id, type, width, height };
  } catch (error) {
    URL.revokeObjectURL(url);
    throw error;
  }
}

const millions = (count) => (count / 1e6).toLocaleString("en", { maximumFractionDigits: 1 });

/** Return an image's size as it is shown. Throws an Error if the browser cannot read it. */
async function sized(url) {
  const image = new Image();
  await new Promise((done, failed) => {
    image.onload = done;
    image.onerror = () => failed(new Error("is damaged and cannot be read; save it again as PNG or JPEG"));
    image.src = url;
  });
  return { width: image.naturalWidth, height: image.naturalHeight };
}

function database() {
  opened ||= new Promise((done, failed) => {
    const query = indexedDB.open(DATABASE, 1);
    query.onupgradeneeded = () => query.result.createObjectStore(STORE);
    query.onsuccess = () => done(query.result);
    query.onerror = () => failed(query.error);
  });
  return opened;
}

/** Run a request of the database; return its result once it is stored. */
async function run(mode, request) {
  const transaction = (await database()).transaction(STORE, mode);
  const query = request(transaction.objectStore(STORE));
  return new Promise((done, failed) => {
    transaction.oncomplete = () => done(query.result);
    transaction.onerror = transaction.onabort = () => failed(transaction.error);
  });
}

/** Store pictures of a conversation; return whether the browser took all of them. */
export async function keep(pictures) {
  const results = await Promise.all(pictures.map(({ id }) => {
    const one = held.get(id);
    if (!one) return true; // not used by this page, so it is stored, or lost
    one.stored ||= run("readwrite", (store) => store.put(one.blob, id)).then(() => true, () => {
      one.stored = null;
      return false;
    });
    return one.stored;
  }));
  return results.every(Boolean);
}

/** Remove pictures from the database. This page still has those that it has used. */
export async function remove(pictures) {
  await Promise.all(pictures.map(({ id }) => {
    if (held.has(id)) held.get(id).stored = null;
    return run("readwrite", (store) => store.delete(id)).catch(() => {});
  }));
}

/** Remove the pictures that no conversation mentions; `mentioned` is the text of all of them. */
export async function sweep(mentioned) {
  const ids = await run("readonly", (store) => store.getAllKeys()).catch(() => []);
  await remove(ids.filter((id) => !held.has(id) && !mentioned.includes(id)).map((id) => ({ id })));
}

/** Return a picture's contents; null if the browser does not have them any more. */
async function contents(id) {
  if (!held.has(id)) {
    const blob = await run("readonly", (store) => store.get(id)).catch(() => undefined);
    if (!(blob instanceof Blob)) return null;
    if (!held.has(id)) held.set(id, { blob, url: URL.createObjectURL(blob), stored: Promise.resolve(true) });
  }
  return held.get(id).blob;
}

/** Show a picture in an <img>; return whether the browser has it. */
export async function show(image, { id }) {
  const found = await contents(id);
  if (found) image.src = held.get(id).url;
  return found !== null;
}

/** Return a picture as a `data:` URL; null if the browser does not have it any more. */
export async function dataUrl({ id, type }) {
  const blob = await contents(id);
  if (blob === null) return null;
  const reader = new FileReader();
  await new Promise((done, failed) => {
    reader.onload = done;
    reader.onerror = () => failed(reader.error);
    reader.readAsDataURL(blob);
  });
  return `data:${type};base64,${reader.result.slice(reader.result.indexOf(",") + 1)}`;
}

/** Return a file of a `data:` URL with a supported picture; null for anything else. */
export function fileOf(url, name) {
  const [head, encoded] = typeof url === "string" ? [url.slice(0, 64).split(",")[0], url.slice(url.indexOf(",") + 1)] : ["", ""];
  const type = head.replace(/^data:|;base64$/g, "");
  if (head !== `data:${type};base64` || !Object.hasOwn(TYPES, type)) return null;
  try {
    const data = Uint8Array.from(atob(encoded), (character) => character.charCodeAt(0));
    return typeOf(data) === type ? new File([data], name, { type }) : null;
  } catch {
    return null; // not base64
  }
}
