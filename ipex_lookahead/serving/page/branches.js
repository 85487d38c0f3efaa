// Versions of messages. A conversation's `messages` are the ones on the screen. Where a message has several versions, the
// shown one has `versions`: {at, tails}. Each tail is a version with the messages after it; the shown one's tail, number
// `at`, is null, because it is in `messages`.

/** Return [number of the shown version from 1, number of versions]. */
export function numbered(message) {
  const { at = 0, tails = [null] } = message.versions || {};
  return [at + 1, tails.length];
}

/** Put a message at a place as a new version of the one there; the old version is kept with what follows it. */
export function add(talk, place, message) {
  if (place >= talk.messages.length) {
    talk.messages.push(message);
    return;
  }
  const versions = stored(talk, place);
  versions.tails.push([message]);
  show(talk, versions, versions.tails.length - 1);
}

/** Show another version, by its number from 1; numbers beyond the ends are ignored. */
export function choose(talk, place, number) {
  const [, count] = numbered(talk.messages[place]);
  if (number < 1 || number > count) return;
  show(talk, stored(talk, place), number - 1);
}

/** Remove the version at a place with what follows it, and show the one before; without another, remove the message. */
export function discard(talk, place) {
  if (place >= talk.messages.length) return;
  const versions = stored(talk, place);
  versions.tails.splice(versions.at, 1);
  if (versions.tails.length) show(talk, versions, Math.max(versions.at - 1, 0));
}

/** Take the shown tail out of `messages` into its versions, and return these. */
function stored(talk, place) {
  const tail = talk.messages.splice(place);
  const versions = tail[0].versions || { at: 0, tails: [null] };
  delete tail[0].versions;
  versions.tails[versions.at] = tail;
  return versions;
}

function show(talk, versions, at) {
  const tail = versions.tails[at];
  versions.at = at;
  if (versions.tails.length > 1) {
    versions.tails[at] = null;
    tail[0].versions = versions;
  }
  talk.messages.push(...tail);
}
