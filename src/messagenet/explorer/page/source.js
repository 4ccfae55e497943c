/** Where photos come from: chosen, dropped anywhere on the page, pasted, or one of the samples. */

import { sampleAddress } from "./api.js";
import { byId, fill, h } from "./dom.js";

/**
 * @param {import("./types.js").Session} session
 * @param {ReturnType<typeof import("./api.js").createApi>} api
 * @param {ReturnType<typeof import("./status.js").createStatus>} status
 */
export function createSource(session, api, status) {
  /** @param {Iterable<File> | null | undefined} files */
  function openFirst(files) {
    const [file] = files ?? [];
    if (file) session.open(file, file.name || "pasted.png");
    return Boolean(file);
  }

  for (const id of ["choose", "choose-large"]) {
    /** @type {HTMLInputElement} */
    const input = byId(id);
    input.addEventListener("change", () => {
      openFirst(input.files);
      input.value = ""; // the same file can be chosen again
    });
  }

  let inside = 0;
  /** @param {number} by */
  const drag = (by) => {
    inside = Math.max(0, inside + by);
    document.body.classList.toggle("dragging", inside > 0);
  };
  document.addEventListener("dragenter", () => drag(1));
  document.addEventListener("dragleave", () => drag(-1));
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    drag(-inside);
    openFirst(event.dataTransfer?.files);
  });
  document.addEventListener("paste", (event) => {
    if (openFirst(event.clipboardData?.files)) event.preventDefault();
  });

  /** @param {string} name */
  const openSample = (name) =>
    api.sample(name).then(
      (file) => session.open(file, name),
      (reason) => status.fail(reason),
    );

  return {
    /** @param {string[]} names */
    showSamples(names) {
      byId("samples-section").hidden = !names.length;
      fill(
        byId("samples"),
        ...names.map((name) =>
          h(
            "li",
            {},
            h(
              "button",
              { type: "button", class: "sample", title: name, onclick: () => openSample(name) },
              h("img", {
                src: sampleAddress(name),
                alt: `Sample ${name}`,
                loading: "lazy",
                decoding: "async",
              }),
            ),
          ),
        ),
      );
    },
  };
}
