/** Going through the iterations: a slider, a play button, and a strip of thumbnails. */

import { byId, fill, figure, h } from "./dom.js";
import { percent } from "./format.js";
import { modelShown, shown } from "./session.js";

const PAUSE = 1000; // milliseconds per iteration while playing
const THUMBNAIL = 160; // canvas pixels across

/**
 * @param {import("./types.js").Store} store
 * @param {import("./types.js").Session} session
 * @param {ReturnType<typeof import("./layers.js").createLayers>} layers
 */
export function createSteps(store, session, layers) {
  const { state } = store;
  /** @type {HTMLInputElement} */
  const slider = byId("iteration");
  const play = byId("play");
  /** @type {number | undefined} */
  let timer;

  const last = () => (shown(state)?.maps.length ?? 1) - 1;

  /** @param {number} by */
  function step(by) {
    const t = Math.min(Math.max(state.t + by, 0), last());
    if (t !== state.t) session.goTo(t);
  }

  function toggle() {
    if (!state.playing && state.t === last()) session.goTo(0);
    store.set({ playing: !state.playing && last() > 0 });
  }

  slider.addEventListener("input", () => {
    store.set({ playing: false });
    session.goTo(Number(slider.value));
  });
  play.addEventListener("click", toggle);

  store.on(["playing"], () => {
    clearInterval(timer);
    if (state.playing) {
      timer = setInterval(() => {
        step(1);
        if (state.t === last()) store.set({ playing: false });
      }, PAUSE);
    }
    play.classList.toggle("playing", state.playing);
    play.setAttribute("aria-label", state.playing ? "Pause" : "Play the iterations");
  });

  store.on(["results", "model", "t"], () => {
    const result = shown(state);
    if (!result) return;
    const { changed } = result.maps[state.t];
    slider.max = String(last());
    slider.value = String(state.t);
    slider.setAttribute("aria-valuetext", state.t ? `${state.t} of ${last()}` : "0, before messages");
    byId("steps").hidden = last() < 1;
    fill(
      byId("step-text"),
      h("strong", {}, `t = ${state.t}`),
      state.t
        ? h(
            "span",
            {},
            ` of ${last()} · `,
            figure(changed, percent(changed), { id: "changed" }),
            " of pixels changed",
          )
        : h("span", {}, ` of ${last()} · unary only, before messages`),
    );
  });

  store.on(["results", "model", "hidden"], () => {
    const [result, model] = [shown(state), modelShown(state)];
    if (!result || !model) return;
    fill(
      byId("strip"),
      ...result.maps.map(({ t, changed }) => {
        const canvas = document.createElement("canvas");
        canvas.width = THUMBNAIL;
        canvas.height = Math.max(1, Math.round((THUMBNAIL * result.height) / result.width));
        const context = canvas.getContext("2d");
        context?.drawImage(layers.labels(result, t, model, state.hidden), 0, 0, canvas.width, canvas.height);
        const caption = h(
          "span",
          {},
          h("span", {}, `t = ${t}`),
          t ? h("small", {}, percent(changed)) : h("small", {}, "unary"),
        );
        return h(
          "button",
          { type: "button", tabindex: -1, class: "thumbnail", "data-t": t, onclick: () => session.goTo(t) },
          canvas,
          caption,
        );
      }),
    );
    mark();
  });

  function mark() {
    for (const each of byId("strip").children) {
      each.classList.toggle("current", each.getAttribute("data-t") === String(state.t));
    }
  }
  store.on(["t"], mark);

  return { step, play: toggle };
}
