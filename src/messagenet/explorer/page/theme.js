/**
 * Light, dark, or as the system has it. A plain script in the head, so that a remembered theme is there
 * before anything is drawn; it announces changes as `themechange`.
 */

(() => {
  const KEY = "messagenet-theme";
  const NEXT = { auto: "light", light: "dark", dark: "auto" };
  const root = document.documentElement;

  function remembered() {
    try {
      return localStorage.getItem(KEY) ?? "auto";
    } catch {
      return "auto"; // storage is switched off
    }
  }

  /** @param {string} theme */
  function apply(theme) {
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
    else delete root.dataset.theme;
    const button = document.getElementById("theme");
    if (button) button.textContent = `Theme: ${theme in NEXT ? theme : "auto"}`;
    document.dispatchEvent(new Event("themechange"));
  }

  let theme = remembered();
  apply(theme);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => apply(theme));
  document.addEventListener("DOMContentLoaded", () => {
    apply(theme);
    document.getElementById("theme")?.addEventListener("click", () => {
      theme = NEXT[/** @type {keyof typeof NEXT} */ (theme)] ?? "light";
      apply(theme);
      try {
        localStorage.setItem(KEY, theme);
      } catch {
        // The theme holds for this visit.
      }
    });
  });
})();
