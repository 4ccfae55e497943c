/** Building elements without markup in strings: what comes from outside is always text. */

/**
 * The element with this id, which index.html holds.
 *
 * @template {HTMLElement} [T=HTMLElement]
 * @param {string} id
 * @returns {T}
 */
export function byId(id) {
  const element = document.getElementById(id);
  if (!element) throw new Error(`index.html has no element "${id}"`);
  return /** @type {T} */ (element);
}

/**
 * An element with attributes, listeners (`onclick`), CSS variables (`"--share"`) and children.
 *
 * @param {string} tag
 * @param {Record<string, unknown>} [attributes] null, undefined and false are left out and true is an empty
 *   value, except for ARIA states, which say "true" and "false".
 * @param {...(Node | string | null)} children
 * @returns {HTMLElement}
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined) continue;
    if (name.startsWith("aria-")) element.setAttribute(name, String(value));
    else if (value === false) continue;
    else if (name.startsWith("--")) element.style.setProperty(name, String(value));
    else if (typeof value === "function") {
      element.addEventListener(name.slice(2), /** @type {EventListener} */ (value));
    } else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/**
 * An SVG element with attributes and children.
 *
 * @param {string} tag
 * @param {Record<string, string | number>} [attributes]
 * @param {...(Node | string)} children
 * @returns {SVGElement}
 */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

/**
 * Replaces what a container holds; what was focused by its `data-key` stays focused.
 *
 * @param {HTMLElement} container
 * @param {...(Node | string | null)} children
 */
export function fill(container, ...children) {
  const active = document.activeElement;
  const key = active instanceof HTMLElement && container.contains(active) ? active.dataset.key : undefined;
  container.replaceChildren(...children.filter((child) => child !== null));
  if (key === undefined) return;
  const again = [...container.querySelectorAll("[data-key]")].find(
    (element) => element instanceof HTMLElement && element.dataset.key === key,
  );
  if (again instanceof HTMLElement) again.focus({ preventScroll: true });
}

/**
 * A number as shown, with its full value for programs: <data value="0.123456">12.3 %</data>.
 *
 * @param {number} value
 * @param {string} shown
 * @param {Record<string, unknown>} [attributes]
 */
export function figure(value, shown, attributes = {}) {
  return h("data", { value, ...attributes }, shown);
}
