/** The marginals of a node before and after messages, as pairs of bars; choosing a class explains it. */

import { byId, fill, figure, h } from "./dom.js";
import { decimals, percent, signed } from "./format.js";
import { modelShown } from "./session.js";

const SHOWN = 6; // classes, unless all are asked for

/** @param {import("./types.js").Store} store */
export function createBars(store) {
  const { state } = store;
  const more = byId("more-classes");
  let all = false;

  function render() {
    const { node, chosen } = state;
    const model = modelShown(state);
    if (!node || !model) return;
    const { unary, belief } = node;
    const order = model.classes
      .map((_, id) => id)
      .sort((a, b) => belief.marginal[b] - belief.marginal[a] || unary.marginal[b] - unary.marginal[a]);
    const likely = new Set([...order].sort((a, b) => peak(node, b) - peak(node, a)).slice(0, SHOWN)).add(
      chosen,
    );
    const digits = decimals(Math.max(...belief.logits.map(Math.abs)), 6, 3);
    const listed = all ? order : order.filter((id) => likely.has(id));
    more.hidden = model.classes.length <= SHOWN;
    more.textContent = all ? "Only the likely classes" : `All ${model.classes.length} classes`;
    more.setAttribute("aria-expanded", String(all));
    byId("after-heading").textContent = `t = ${node.iteration}`;
    fill(byId("bars"), ...listed.map((id) => row(id)));

    /** @param {number} id */
    function row(id) {
      const { name, colour } = /** @type {import("./types.js").Model} */ (model).classes[id];
      const [before, now] = [unary.marginal[id], belief.marginal[id]];
      return h(
        "tr",
        { "data-class": name, class: id === chosen ? "chosen" : null },
        h(
          "th",
          { scope: "row" },
          h(
            "button",
            {
              type: "button",
              class: "class-choice",
              "aria-pressed": id === chosen,
              title: `Explain ${name}`,
              "data-key": id,
              "--colour": colour,
              onclick: () => store.set({ chosen: id, rival: state.rival === id ? null : state.rival }),
            },
            h("span", { class: "swatch", "aria-hidden": "true" }),
            h("span", { class: "name" }, name),
          ),
        ),
        h(
          "td",
          { class: "pair", "aria-hidden": "true" },
          h(
            "div",
            {},
            h("span", { class: "bar before", "--share": before }),
            h("span", { class: "bar after", "--share": now }),
          ),
        ),
        h("td", { class: "number soft" }, figure(before, percent(before), { class: "unary-marginal" })),
        h("td", { class: "number" }, figure(now, percent(now), { class: "marginal" })),
        h(
          "td",
          { class: "number soft" },
          figure(belief.logits[id], signed(belief.logits[id], digits), { class: "logit" }),
        ),
      );
    }
  }

  more.addEventListener("click", () => {
    all = !all;
    render();
  });
  store.on(["node", "chosen"], render);
}

/**
 * The larger of a class's marginals before and after messages.
 *
 * @param {import("./types.js").Explanation} node
 * @param {number} id
 */
function peak({ unary, belief }, id) {
  return Math.max(unary.marginal[id], belief.marginal[id]);
}
