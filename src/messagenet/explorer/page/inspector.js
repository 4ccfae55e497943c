/** The panel about one node: what it believed alone, what it believes now, and who changed its mind. */

import { createBars } from "./bars.js";
import { byId, fill, h } from "./dom.js";
import { percent } from "./format.js";
import { createSenders } from "./senders.js";
import { largest, modelShown, shown } from "./session.js";
import { createTrend } from "./trend.js";
import { createWaterfall } from "./waterfall.js";

/**
 * @typedef {import("./types.js").State} State
 * @typedef {import("./types.js").Explanation} Explanation
 * @typedef {import("./types.js").ClassInfo} ClassInfo
 */

/**
 * @param {import("./types.js").Store} store
 * @param {import("./types.js").Session} session
 */
export function createInspector(store, session) {
  const { state } = store;
  createBars(store);
  createTrend(store);
  createWaterfall(store);
  createSenders(store, session);
  byId("forget").addEventListener("click", () => {
    session.forget();
    byId("surface").focus({ preventScroll: true });
  });

  store.on(["node", "model", "results"], () => {
    const { node } = state;
    const model = modelShown(state);
    byId("node").hidden = !node;
    byId("no-node").hidden = Boolean(node);
    byId("no-node-text").textContent = invitation(state);
    if (!node || !model) return;
    byId("node-title").textContent = `Node at row ${node.node.row}, column ${node.node.column}`;
    fill(byId("node-verdict"), ...verdict(node, model.classes));
  });
}

/** @param {State} state */
function invitation(state) {
  if (!shown(state)) return "Open a photo, then click a pixel to see every message that its node receives.";
  if (!modelShown(state)?.explains) {
    return `“${state.model}” decides without messages, so there is nothing to explain. Choose another model.`;
  }
  return (
    "Click a pixel, or move over the image with the arrow keys and press Enter, to see which messages its " +
    "node receives and what they change."
  );
}

/**
 * In a sentence, what the node says alone and what it says after messages.
 *
 * @param {Explanation} node
 * @param {ClassInfo[]} classes
 * @returns {(Node | string)[]}
 */
function verdict({ unary, after, iteration }, classes) {
  const [before, now] = [largest(unary.logits), largest(after.logits)];
  const name = (/** @type {number} */ id) => h("strong", {}, classes[id].name);
  const [alone, joined] = [percent(unary.marginal[before]), percent(after.marginal[now])];
  if (iteration === 0) return ["On its own it says ", name(before), ` (${alone}).`];
  if (before === now) return ["It says ", name(now), ` alone (${alone}) and after messages (${joined}).`];
  return ["On its own it says ", name(before), ` (${alone}); after messages `, name(now), ` (${joined}).`];
}
