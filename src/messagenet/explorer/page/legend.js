/** The classes with their share of the pixels, each a switch; for uncertainty, the scale of its colours. */

import { byId, fill, figure, h } from "./dom.js";
import { percent } from "./format.js";
import { modelShown, shown } from "./session.js";

/** @param {import("./types.js").Store} store */
export function createLegend(store) {
  const { state } = store;
  const list = byId("classes");
  const more = byId("absent");
  let all = false;

  /** @param {number} id */
  function toggle(id) {
    const hidden = new Set(state.hidden);
    if (!hidden.delete(id)) hidden.add(id);
    store.set({ hidden });
  }

  function render() {
    const [model, result] = [modelShown(state), shown(state)];
    if (!model || !result) return;
    const { shares } = result.maps[state.t];
    const present = result.maps.reduce(
      (seen, each) => seen.map((was, id) => was || each.shares[id] > 0),
      model.classes.map(() => false),
    );
    const absent = present.filter((is) => !is).length;
    more.hidden = !absent;
    more.textContent = all ? "Only classes in the image" : `${absent} more, not in the image`;
    more.setAttribute("aria-expanded", String(all));
    fill(
      list,
      ...model.classes.flatMap(({ name, colour }, id) => {
        if (!present[id] && !all) return [];
        const on = !state.hidden.has(id);
        const button = h(
          "button",
          {
            type: "button",
            role: "switch",
            class: "class",
            "aria-checked": on,
            "data-key": id,
            "data-class": name,
            "--colour": colour,
            onclick: () => toggle(id),
          },
          h("span", { class: "swatch", "aria-hidden": "true" }),
          h("span", { class: "name" }, name),
          figure(shares[id], percent(shares[id])),
        );
        return [h("li", {}, button)];
      }),
    );
    byId("largest-entropy").textContent =
      `log ${model.classes.length} = ${Math.log(model.classes.length).toFixed(2)} nats`;
  }

  more.addEventListener("click", () => {
    all = !all;
    render();
  });
  byId("all-on").addEventListener("click", () => store.set({ hidden: new Set() }));
  byId("all-off").addEventListener("click", () => {
    store.set({ hidden: new Set(modelShown(state)?.classes.map((_, id) => id)) });
  });
  store.on(["results", "model", "t", "hidden"], render);
  store.on(["view"], () => {
    byId("class-legend").hidden = state.view === "entropy";
    byId("entropy-legend").hidden = state.view !== "entropy";
  });
}
