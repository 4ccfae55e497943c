/** The chosen class's logit as a sum: the unary message, then the messages of each relation. */

import { relationSwatch } from "./colour.js";
import { byId, fill, figure, h } from "./dom.js";
import { addUp, decimals, signed } from "./format.js";
import { inQuestion, parts } from "./messages.js";
import { modelShown } from "./session.js";

/** @param {import("./types.js").Store} store */
export function createWaterfall(store) {
  const { state } = store;
  /** @type {HTMLSelectElement} */
  const chosen = byId("chosen");
  /** @type {HTMLSelectElement} */
  const rival = byId("rival");
  chosen.addEventListener("change", () => {
    const id = Number(chosen.value);
    store.set({ chosen: id, rival: state.rival === id ? null : state.rival });
  });
  rival.addEventListener("change", () =>
    store.set({ rival: rival.value === "" ? null : Number(rival.value) }),
  );

  store.on(["node", "chosen", "rival"], () => {
    const { node } = state;
    const model = modelShown(state);
    if (!node || !model) return;
    const options = model.classes.map(({ name }, id) => h("option", { value: id }, name));
    fill(chosen, ...options.map((option) => option.cloneNode(true)));
    chosen.value = String(state.chosen);
    fill(
      rival,
      h("option", { value: "" }, "— (its logit)"),
      ...options.filter((_, id) => id !== state.chosen),
    );
    rival.value = state.rival === null ? "" : String(state.rival);

    const list = parts(state);
    const total = inQuestion(state)(node.belief.logits);
    const ends = list.reduce((sums, { value }) => [...sums, sums[sums.length - 1] + value], [0]);
    const digits = decimals(Math.max(...ends.map(Math.abs)), 6, 3);
    const values = list.map(({ value }) => value);
    const shown = addUp(values, total, digits);
    const [low, high] = [Math.min(...ends), Math.max(...ends)];
    const span = high - low || 1;
    /** @param {number} value */
    const position = (value) => (value - low) / span;

    const rows = list.map(({ name, form, value, senders, style }, i) => {
      const note = form === "unary" ? "from its own features" : senderNote(form, senders);
      return h(
        "tr",
        { "data-factor": name },
        h(
          "th",
          { scope: "row" },
          h(
            "div",
            { class: "factor" },
            style < 0
              ? h("span", { class: "box-swatch none", "aria-hidden": "true" })
              : relationSwatch(style),
            h("span", {}, name, h("small", {}, note)),
          ),
        ),
        track(position(ends[i]), position(ends[i + 1]), position(0), value < 0 ? "against" : "for"),
        h("td", { class: "number" }, figure(value, signed(shown[i], digits), { class: "part" })),
      );
    });
    fill(byId("waterfall"), ...rows);
    fill(
      byId("waterfall-sum"),
      h(
        "tr",
        { class: "sum" },
        h("th", { scope: "row" }, state.rival === null ? "= logit" : "= difference of logits"),
        track(position(0), position(total), position(0), "total"),
        h("td", { class: "number" }, figure(total, signed(total, digits), { class: "total" })),
      ),
    );
    byId("no-messages").hidden = node.iteration > 0;
  });
}

/**
 * @param {string} form
 * @param {number} senders
 */
function senderNote(form, senders) {
  if (!senders) return "no senders";
  if (form === "box") return `one message from a box of ${senders}`;
  return senders === 1 ? "1 message" : `${senders} messages`;
}

/**
 * A bar from one position to another, 0 to 1, with the axis at zero and a line down to where the next starts.
 *
 * @param {number} from
 * @param {number} to
 * @param {number} zero
 * @param {string} kind
 */
function track(from, to, zero, kind) {
  return h(
    "td",
    { class: "track", "aria-hidden": "true", "--zero": zero, "--end": to },
    h("span", { class: "axis" }),
    h("span", { class: `fall ${kind}`, "--from": Math.min(from, to), "--size": Math.abs(to - from) }),
    kind === "total" ? null : h("span", { class: "link" }),
  );
}
