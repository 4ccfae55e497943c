/** Which relations are drawn, the scale of their colours, and the strongest messages. */

import { css, pushScale } from "./colour.js";
import { byId, fill, figure, h } from "./dom.js";
import { decimals, direction, signed } from "./format.js";
import { largestPush, messages, parts, pushes } from "./messages.js";
import { modelShown } from "./session.js";
import { relationSwatch } from "./swatch.js";

const LISTED = 5; // on either side

/**
 * @typedef {import("./types.js").Message} Message
 */

/**
 * @param {import("./types.js").Store} store
 * @param {import("./types.js").Session} session
 */
export function createSenders(store, session) {
  const { state } = store;

  /** @param {string} name */
  function toggle(name) {
    const muted = new Set(state.muted);
    if (!muted.delete(name)) muted.add(name);
    store.set({ muted, highlight: null });
  }

  store.on(["node", "muted"], () => {
    const relations = parts(state).slice(1);
    byId("senders-section").hidden = !relations.length;
    fill(
      byId("relations"),
      ...relations.map(({ name, style }) =>
        h(
          "li",
          {},
          h(
            "button",
            {
              type: "button",
              role: "switch",
              class: "relation",
              "aria-checked": !state.muted.has(name),
              "data-key": name,
              onclick: () => toggle(name),
            },
            relationSwatch(style),
            name,
          ),
        ),
      ),
    );
  });

  store.on(["node", "chosen", "rival", "muted", "themes"], () => {
    const { node } = state;
    const model = modelShown(state);
    if (!node || !model) return;
    const all = messages(state);
    const most = largestPush(pushes(state));
    const digits = decimals(largestPush(all), 3, 6);
    const scaleDigits = decimals(most, 3, 6);
    const colour = pushScale();
    const styles = new Map(parts(state).map(({ name, style }) => [name, style]));
    const over = state.rival === null ? "" : ` over ${model.classes[state.rival].name}`;
    const name = model.classes[state.chosen].name + over;
    byId("scale-low").textContent = signed(-most, scaleDigits);
    byId("scale-high").textContent = signed(most, scaleDigits);
    byId("scale").hidden = !all.length;
    for (const [side, sign] of /** @type {["for" | "against", number][]} */ ([
      ["for", 1],
      ["against", -1],
    ])) {
      const pushing = all.filter(({ value }) => Math.sign(value) === sign);
      byId(`${side}-title`).textContent = `${pushing.length} ${side} ${name}`;
      fill(
        byId(`senders-${side}`),
        ...pushing.slice(0, LISTED).map((message) => {
          const push = most ? message.value / message.senders.length / most : 0;
          return h("li", {}, item(message, styles.get(message.relation) ?? 0, css(colour(push))));
        }),
      );
    }
    byId("senders-note").textContent = all.length
      ? "The strongest messages on either side. Click one to explain its sender."
      : "Nobody sends a message through the relations drawn.";

    /**
     * @param {Message} message
     * @param {number} style
     * @param {string} shade
     */
    function item(message, style, shade) {
      const { relation, senders, value } = message;
      const [row, column] = senders[0];
      const receiver = /** @type {import("./types.js").Explanation} */ (node).node;
      const box = `${senders.length} nodes`;
      const { words, arrows } =
        senders.length > 1
          ? { words: box, arrows: box }
          : direction(row - receiver.row, column - receiver.column);
      const point = () => store.set({ highlight: message });
      const leave = () => store.set({ highlight: null });
      return h(
        "button",
        {
          type: "button",
          class: "sender",
          "data-key": `${relation} ${row} ${column}`,
          "data-senders": JSON.stringify(senders.length > 1 ? [] : senders[0]),
          "data-relation": relation,
          "--colour": shade,
          title: senders.length > 1 ? null : `Row ${row}, column ${column}; click to explain that node`,
          onmouseenter: point,
          onmouseleave: leave,
          onfocus: point,
          onblur: leave,
          onclick: async () => {
            if (senders.length !== 1) return;
            await session.explainNode({ row, column });
            byId("node-title").focus({ preventScroll: true });
          },
        },
        h("span", { class: "swatch", "aria-hidden": "true" }),
        relationSwatch(style),
        h("span", { class: "unseen" }, `${relation}, ${words}: `),
        h("span", { class: "where", "aria-hidden": "true" }, arrows),
        figure(value, signed(value, digits)),
      );
    }
  });
}
