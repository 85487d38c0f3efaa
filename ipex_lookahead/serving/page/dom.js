// Small things that the other modules share.
export const at = (id) => document.getElementById(id);

export function element(tag, className = "", ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

export function button(said, action, label = said) {
  const made = element("button", "small", said);
  made.type = "button";
  made.setAttribute("aria-label", label);
  made.addEventListener("click", () => action(made));
  return made;
}

export async function copied(text, from) {
  const said = from.textContent;
  try {
    await navigator.clipboard.writeText(text);
    from.textContent = "Copied";
  } catch { // not allowed, or no secure context
    from.textContent = byHand(text) ? "Copied" : "Not copied";
  }
  setTimeout(() => (from.textContent = said), 1500);
}

function byHand(text) {
  const held = element("textarea", "unseen");
  held.value = text;
  document.body.append(held);
  held.select();
  const done = document.execCommand("copy");
  held.remove();
  return done;
}

// Keeps the end of what grows in view, until the reader scrolls up; from the end on it is followed again.
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
