/** The message explorer: puts the parts together, then asks the server for its models and samples. */

import { createApi } from "./api.js";
import { createDownloads } from "./downloads.js";
import { createInspector } from "./inspector.js";
import { createLayers } from "./layers.js";
import { createLegend } from "./legend.js";
import { createPicking } from "./pick.js";
import { createSession, hiddenAtFirst } from "./session.js";
import { createSource } from "./source.js";
import { createStage } from "./stage.js";
import { createStatus } from "./status.js";
import { createSteps } from "./steps.js";
import { createStore } from "./store.js";
import { createSwipe } from "./swipe.js";
import { createView } from "./view.js";

/** @type {import("./types.js").State} */
const initial = {
  models: [],
  model: "",
  photo: null,
  results: new Map(),
  t: 0,
  view: "labels",
  opacity: 0.6,
  hidden: new Set(),
  cursor: null,
  hover: null,
  node: null,
  chosen: 0,
  rival: null,
  hiddenRelations: new Set(),
  highlight: null,
  compare: null,
  swipe: 0.5,
  playing: false,
  themes: 0,
};

const store = createStore(initial);
const status = createStatus();
const api = createApi(status.waiting);
const session = createSession(store, api, status);
const layers = createLayers();

createStage(store, layers);
createView(store, session);
createLegend(store);
createPicking(store, session, createSteps(store, session, layers));
createSwipe(store, session);
createInspector(store, session);
createDownloads(store, session, layers, status);
const source = createSource(session, api, status);
document.addEventListener("themechange", () => {
  store.set({ themes: store.state.themes + 1 });
});

await status.during("", async () => {
  const answer = await api.models();
  const first = answer.models.find(({ id }) => id === answer.default);
  store.set({ models: answer.models, model: answer.default, hidden: hiddenAtFirst(first) });
  source.showSamples(await api.samples());
  document.body.classList.add("ready");
});
