/** Which relations are drawn, the scale of their colours, and the strongest messages. */

import { css, divergingScale, relationSwatch } from "./colour.js";
import { byId, fill, figure, h } from "./dom.js";
import { decimals, direction, signed } from "./format.js";
import { largestContribution, messages, parts, contributions } from "./messages.js";
import { modelShown } from "./session.js";

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
    const hiddenRelations = new Set(state.hiddenRelations);
    if (!hiddenRelations.delete(name)) hiddenRelations.add(name);
    store.set({ hiddenRelations, highlight: null });
  }

  store.on(["node", "hiddenRelations"], () => {
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
              "aria-checked": !state.hiddenRelations.has(name),
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

  store.on(["node", "chosen", "rival", "hiddenRelations", "themes"], () => {
    const { node } = state;
    const model = modelShown(state);
    if (!node || !model) return;
    const all = messages(state);
    const max = largestContribution(contributions(state));
    const scaleDigits = decimals(max, 3, 6);
    const colour = divergingScale();
    const styles = new Map(parts(state).map(({ name, style }) => [name, style]));
    const over = state.rival === null ? "" : ` over ${model.classes[state.rival].name}`;
    const name = model.classes[state.chosen].name + over;
    byId("scale-low").textContent = signed(-max, scaleDigits);
    byId("scale-high").textContent = signed(max, scaleDigits);
    byId("scale").hidden = !all.length;
    for (const [side, sign] of /** @type {["for" | "against", number][]} */ ([
      ["for", 1],
      ["against", -1],
    ])) {
      const group = all.filter(({ value }) => Math.sign(value) === sign);
      const listed = group.slice(0, LISTED);
      const weakest = listed[listed.length - 1]?.value ?? 0;
      const digits = decimals(Math.abs(weakest), 2, 6);
      byId(`${side}-title`).textContent = `${group.length} ${side} ${name}`;
      fill(
        byId(`senders-${side}`),
        ...listed.map((message) => {
          const share = max ? message.value / message.senders.length / max : 0;
          return h("li", {}, item(message, styles.get(message.relation) ?? 0, css(colour(share)), digits));
        }),
      );
    }
    byId("senders-note").textContent = all.length
      ? "The strongest messages on either side. Click one to explain its sender."
      : "No messages in the relations shown.";

    /**
     * @param {Message} message
     * @param {number} style
     * @param {string} shade
     * @param {number} digits
     */
    function item(message, style, shade, digits) {
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
        h("span", { class: "visually-hidden" }, `${relation}, ${words}: `),
        h("span", { class: "where", "aria-hidden": "true" }, arrows),
        figure(value, signed(value, digits)),
      );
    }
  });
}
