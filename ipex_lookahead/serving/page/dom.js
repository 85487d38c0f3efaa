// DOM helpers that the other modules share.

/** Return the element with an id. */
export const at = (id) => document.getElementById(id);

/** Return a new element with children: nodes or texts. */
export function element(tag, className = "", ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

/** Return a new icon, by its name in index.html. Icons are decoration: the button has the name. */
export function icon(name) {
  const made = at("icons").content.querySelector(`[data-name="${name}"]`).cloneNode(true);
  made.setAttribute("aria-hidden", "true");
  return made;
}

/** Put the icons into all elements of the page that name one in `data-icon`. */
export function drawIcons() {
  for (const place of document.querySelectorAll("[data-icon]")) place.prepend(icon(place.dataset.icon));
}

/** Return a small button; `action` receives it on a click. */
export function button(text, action, label = text) {
  const made = element("button", "small", text);
  made.type = "button";
  if (label !== text) made.setAttribute("aria-label", label);
  made.addEventListener("click", () => action(made));
  return made;
}

/** Return a button that shows an icon; `label` is its name and tooltip. */
export function iconButton(name, label, action) {
  const made = button("", action, label);
  made.className = "icon-button";
  made.title = label;
  made.append(icon(name));
  return made;
}

/** Return a button that copies what `text` returns. */
export function copyButton(label, text) {
  return iconButton("copy", label, async (from) => {
    const done = await copy(text());
    from.replaceChildren(icon(done ? "check" : "close"));
    announce(done ? "Copied." : "Not copied.");
    setTimeout(() => from.replaceChildren(icon("copy")), 1500);
  });
}

/** Copy text to the clipboard; return whether that worked. */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch { // no permission, or no secure context
    return copyBySelection(text);
  }
}

function copyBySelection(text) {
  const held = element("textarea", "unseen");
  held.value = text;
  document.body.append(held);
  held.select();
  const done = document.execCommand("copy");
  held.remove();
  return done;
}

/** Report to screen readers what the page shows in another way. */
export function announce(text) {
  at("status").textContent = text;
}

/** Make a button open and close a panel. A click outside, Escape, or leaving it by keyboard closes it. Return `close`. */
export function disclosure(opener, panel) {
  const set = (open) => {
    panel.hidden = !open;
    opener.setAttribute("aria-expanded", String(open));
  };
  const outside = (node) => node && !panel.contains(node) && !opener.contains(node);
  opener.addEventListener("click", () => set(panel.hidden));
  document.addEventListener("pointerdown", ({ target }) => outside(target) && set(false));
  panel.addEventListener("focusout", ({ relatedTarget }) => outside(relatedTarget) && set(false));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || panel.hidden) return;
    event.stopImmediatePropagation();
    set(false);
    opener.focus();
  });
  return () => set(false);
}

/**
 * Keep the end of growing content in view until the reader scrolls up, and again from when the reader reaches the end.
 * Return a function that scrolls to the end.
 */
export function follow(place, growing, button) {
  let following = true;
  let before = 0;
  const toEnd = () => {
    place.scrollTop = place.scrollHeight;
  };
  place.addEventListener("scroll", () => {
    const left = place.scrollHeight - place.clientHeight - place.scrollTop;
    if (left < 24) following = true;
    else if (place.scrollTop < before) following = false;
    before = place.scrollTop;
    button.hidden = following;
  });
  const again = () => {
    following = true;
    toEnd();
  };
  button.addEventListener("click", again);
  const watch = new ResizeObserver(() => following && toEnd());
  for (const one of [place, ...growing]) watch.observe(one);
  return again;
}
