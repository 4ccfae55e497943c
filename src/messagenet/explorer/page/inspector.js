/** The panel about one node: its beliefs before and after messages, and the messages. */

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
  byId("close-node").addEventListener("click", () => {
    session.closeNode();
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
  if (!modelShown(state)?.explainable) {
    return `“${state.model}” passes no messages, so there is nothing to explain. Choose another model.`;
  }
  const side = Math.round(shown(state)?.stride ?? 0);
  return (
    "Click a pixel, or move over the image with the arrow keys and press Enter, to see which messages its " +
    `node receives and what they change. A node is one cell of the feature map, here ${side} × ${side} pixels.`
  );
}

/**
 * The labels before and after messages, in a sentence.
 *
 * @param {Explanation} node
 * @param {ClassInfo[]} classes
 * @returns {(Node | string)[]}
 */
function verdict({ unary, belief, iteration }, classes) {
  const [before, now] = [largest(unary.logits), largest(belief.logits)];
  const name = (/** @type {number} */ id) => h("strong", {}, classes[id].name);
  const [first, last] = [percent(unary.marginal[before]), percent(belief.marginal[now])];
  if (iteration === 0) return ["Before messages: ", name(before), ` (${first}).`];
  if (before === now) return [name(now), `, both before messages (${first}) and after (${last}).`];
  return ["Before messages: ", name(before), ` (${first}). After messages: `, name(now), ` (${last}).`];
}
