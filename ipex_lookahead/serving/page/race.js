// The same request twice with the same seed, without lookahead and with it; the texts and the times are compared.
import { ask, summary } from "./api.js";
import { write } from "./answer.js";
import { at } from "./dom.js";
import { drawnSeed } from "./settings.js";

/** Run a race over `messages` and show it. */
export async function race(messages, options, signal) {
  at("verdict").textContent = "";
  for (const lane of ["plain", "ahead"]) {
    at(`${lane}-said`).replaceChildren();
    at(`${lane}-figures`).textContent = "waiting";
  }
  const seed = options.seed ?? drawnSeed();
  const plain = await run("plain", messages, { ...options, seed, lookahead: 0 }, signal);
  const ahead = await run("ahead", messages, { ...options, seed }, signal);
  at("verdict").textContent = await verdict(plain, ahead);
}

async function run(lane, messages, options, signal) {
  const said = at(`${lane}-said`);
  const figures = at(`${lane}-figures`);
  let text = "";
  const ended = await ask(messages, options, signal, ({ prefill, trace = [] }) => {
    if (prefill) figures.textContent = `reading the prompt: ${prefill}`;
    for (const piece of trace) {
      text += piece.text;
      write(said, piece.source || "", piece.text);
    }
  });
  figures.textContent = summary(ended);
  return { text, timings: ended.timings };
}

async function verdict(plain, ahead) {
  if (plain.text !== ahead.text) {
    const [one, other] = [[...plain.text], [...ahead.text]];
    const same = one.findIndex((character, i) => other[i] !== character);
    return `DIFFERENT from character ${same < 0 ? one.length : same} on`;
  }
  const ratio = ahead.timings.predicted_per_second / plain.timings.predicted_per_second;
  let digest = "";
  if (crypto.subtle) {
    const bytes = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(ahead.text)));
    digest = ` · sha256 ${[...bytes.slice(0, 8)].map((b) => b.toString(16).padStart(2, "0")).join("")}…`;
  }
  return `identical ✓${digest}${Number.isFinite(ratio) ? ` · lookahead is ${ratio.toFixed(2)} times as fast` : ""}`;
}
