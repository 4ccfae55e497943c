/** What lies over the photo and how strongly, and which model it is from. */

import { byId, fill, h } from "./dom.js";
import { shown } from "./session.js";

/**
 * @param {import("./types.js").Store} store
 * @param {import("./types.js").Session} session
 */
export function createView(store, session) {
  const { state } = store;
  /** @type {HTMLInputElement} */
  const opacity = byId("opacity");
  /** @type {HTMLSelectElement} */
  const model = byId("model");

  opacity.addEventListener("input", () => store.set({ opacity: Number(opacity.value) / 100 }));
  model.addEventListener("change", async () => {
    await session.useModel(model.value);
    model.value = state.model;
  });
  for (const input of document.querySelectorAll('input[name="view"]')) {
    if (!(input instanceof HTMLInputElement)) continue;
    input.addEventListener("change", () => {
      store.set({ view: /** @type {import("./types.js").State["view"]} */ (input.value) });
    });
  }

  store.on(["models"], () => {
    fill(model, ...state.models.map(({ id }) => h("option", { value: id }, id)));
    model.value = state.model;
    byId("model-field").hidden = !state.models.length;
  });
  store.on(["model"], () => {
    model.value = state.model;
  });
  store.on(["opacity", "view"], () => {
    byId("opacity-value").textContent = `${Math.round(100 * state.opacity)}\u202f%`;
    opacity.disabled = state.view === "photo";
  });
  store.on(["results", "model"], () => {
    byId("work").classList.toggle("has-photo", Boolean(shown(state)));
  });
}
