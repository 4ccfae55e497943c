/** Comparing with another model or iteration, shown left of a handle that mouse, finger and keys move. */

import { byId, fill, figure, h } from "./dom.js";
import { percent } from "./format.js";
import { clamp } from "./geometry.js";
import { modelShown, sameClasses, shown } from "./session.js";

const NUDGE = 0.02;
const JUMP = 0.1;

/**
 * @typedef {import("./types.js").State} State
 * @typedef {import("./types.js").Version} Version
 */

/**
 * @param {import("./types.js").Store} store
 * @param {import("./types.js").Session} session
 */
export function createSwipe(store, session) {
  const { state } = store;
  const frame = byId("frame");
  const handle = byId("handle");
  /** @type {HTMLInputElement} */
  const toggle = byId("compare");
  /** @type {HTMLSelectElement} */
  const choice = byId("compare-with");

  /** @param {number} position */
  const move = (position) => store.set({ swipe: clamp(position, 0, 1) });

  handle.addEventListener("pointerdown", (event) => {
    handle.setPointerCapture(event.pointerId);
    handle.focus();
    event.preventDefault();
  });
  handle.addEventListener("pointermove", (event) => {
    if (!handle.hasPointerCapture(event.pointerId)) return;
    const rect = frame.getBoundingClientRect();
    move((event.clientX - rect.left) / rect.width);
  });
  handle.addEventListener("keydown", (event) => {
    const moves = {
      ArrowLeft: state.swipe - NUDGE,
      ArrowDown: state.swipe - NUDGE,
      ArrowRight: state.swipe + NUDGE,
      ArrowUp: state.swipe + NUDGE,
      PageDown: state.swipe - JUMP,
      PageUp: state.swipe + JUMP,
      Home: 0,
      End: 1,
    };
    if (!(event.key in moves)) return;
    move(moves[/** @type {keyof typeof moves} */ (event.key)]);
    event.preventDefault();
  });

  function sync() {
    fill(choice, ...versions(state).map((version) => h("option", {}, versionName(state, version))));
    choice.selectedIndex = versions(state).findIndex((each) =>
      same(each, state.compare ?? suggestion(state)),
    );
    choice.disabled = !state.compare;
    toggle.checked = Boolean(state.compare);
  }

  toggle.addEventListener("change", () => {
    session.compare(toggle.checked ? suggestion(state) : null).then(sync);
  });
  choice.addEventListener("change", () => {
    session.compare(versions(state)[choice.selectedIndex]).then(sync);
  });
  store.on(["models", "model", "compare"], sync);
  store.on(["models", "model", "results", "compare", "t"], () => {
    const { compare } = state;
    const ready = Boolean(compare && shown(state) && state.results.has(compare.model));
    handle.hidden = byId("left-tag").hidden = byId("right-tag").hidden = !ready;
    byId("agreement").hidden = !ready;
    if (!compare || !ready) return;
    byId("left-tag").textContent = versionName(state, compare);
    byId("right-tag").textContent = versionName(state, { model: state.model, t: state.t });
    const share = agreement(state, compare);
    fill(
      byId("agreement"),
      ...(share === null
        ? ["their classes differ"]
        : ["same label at ", figure(share, percent(share)), " of pixels"]),
    );
  });
  store.on(["swipe"], () => {
    frame.style.setProperty("--swipe", String(state.swipe));
    const whole = Math.round(100 * state.swipe);
    handle.setAttribute("aria-valuenow", String(whole));
    handle.setAttribute("aria-valuetext", `${whole} % of the width`);
  });
}

/**
 * Every model after every iteration.
 *
 * @param {State} state
 * @returns {Version[]}
 */
function versions({ models }) {
  return models.flatMap(({ id, iterations }) =>
    Array.from({ length: iterations + 1 }, (_, t) => ({ model: id, t })),
  );
}

/**
 * What to compare with at first: the same model before any message.
 *
 * @param {State} state
 * @returns {Version}
 */
function suggestion(state) {
  return { model: state.model, t: 0 };
}

/**
 * @param {Version} one
 * @param {Version} other
 */
function same(one, other) {
  return one.model === other.model && one.t === other.t;
}

/**
 * @param {State} state
 * @param {Version} version
 */
function versionName(state, { model, t }) {
  return state.models.length > 1 ? `${model}, t = ${t}` : `t = ${t}`;
}

/**
 * The share of pixels with the same label on both sides; null where the classes are not the same.
 *
 * @param {State} state
 * @param {Version} version
 */
function agreement(state, version) {
  const [here, there] = [shown(state), state.results.get(version.model)];
  const model = state.models.find((each) => each.id === version.model);
  if (!here || !there || !sameClasses(modelShown(state), model)) return null;
  const [one, other] = [here.maps[state.t].labels, there.maps[version.t].labels];
  let equal = 0;
  for (let i = 0; i < one.length; i += 1) if (one[i] === other[i]) equal += 1;
  return equal / one.length;
}
