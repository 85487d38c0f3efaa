// The model and its server: what is known of them, in the header and on the empty page.
import { request, requestKey } from "./api.js";
import { at, copyButton, element } from "./dom.js";
import { describeSettings } from "./settings.js";

const RETRY_MS = 2000;

/** What `/v1/models` reports of the model, once it is loaded. */
export const model = { name: "", context: 0 };

/** Return the address that programs use for OpenAI's API. */
export const address = () => new URL("v1", document.baseURI).href;

/** Ask the server for its model until it answers, and show the model. */
export async function connect() {
  const response = await request("v1/models").catch(() => null);
  if (response && response.ok) {
    describe((await response.json()).data[0]);
    return;
  }
  if (response && response.status === 401) {
    requestKey();
    at("model").textContent = "API key required";
    at("summary").textContent = "enter it under Settings";
    return;
  }
  const loading = response && response.status === 503;
  at("model").textContent = loading ? "Loading the model…" : "No answer from the server";
  at("summary").textContent = "";
  setTimeout(connect, RETRY_MS);
}

function describe({ id, max_model_len: context, meta }) {
  Object.assign(model, { name: id, context });
  const format = meta.low_bit || meta.engine;
  const tokens = `${context.toLocaleString("en")} tokens`;
  at("model").textContent = id;
  at("summary").textContent = `${format} · ${tokens}`;
  at("no-template").hidden = meta.chat_template !== false;
  describeSettings(meta);
  const rows = [
    ["Name", id, "Copy the model's name"],
    ["API", address(), "Copy the API address"],
    ["Format", format],
    ["Context", tokens],
    ["Engine", [meta.engine, meta.isa, meta.threads && `${meta.threads} threads`].filter(Boolean).join(", ")],
    ["Weights", meta.weight_bytes ? `${(meta.weight_bytes / 1e9).toFixed(2)} GB` : ""],
  ];
  at("facts-list").replaceChildren(...rows.filter(([, value]) => value).flatMap(([name, value, copy]) => [
    element("dt", "", name),
    element("dd", "", element("span", "", value), ...(copy ? [copyButton(copy, () => value)] : [])),
  ]));
  at("address").textContent = address();
  at("address").parentElement.replaceChildren(at("address"), copyButton("Copy the API address", address));
}
