"""The style sheet of the report: one column, rows of pictures that wrap, light or dark as the system is."""

CSS = """
:root {
  color-scheme: light dark;
  --ink: #1f2934; --soft: #56616d; --paper: #ffffff; --panel: #f5f7f9; --rule: #d8dde2; --accent: #005a8d;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e4e8ec; --soft: #a3adb8; --paper: #14181c; --panel: #1c2227; --rule: #343c44; --accent: #6cb8e6;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 72rem; color: var(--ink); background: var(--paper);
  font: 1rem/1.5 system-ui, sans-serif;
}
h1 { font-size: 1.75rem; margin: 0 0 .25rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .75rem; border-bottom: 1px solid var(--rule); }
p.lead, figcaption, caption { color: var(--soft); }
.tables { display: flex; flex-wrap: wrap; gap: 1.5rem 2.5rem; align-items: flex-start; }
.plots {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1.25rem;
  align-items: start;
}
.scroll { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: .4rem; font-size: .9rem; }
th, td { padding: .25rem .75rem; text-align: right; border-bottom: 1px solid var(--rule); }
th { font-weight: 600; }
tbody th { text-align: left; font-weight: 400; }
td strong { color: var(--accent); }
.swatch {
  display: inline-block; width: .85em; height: .85em; margin-right: .5em; vertical-align: -.08em;
  border: 1px solid var(--rule); border-radius: .2em;
}
figure { margin: 0; }
figcaption { font-size: .9rem; }
.plots > figure { min-width: 0; padding: 1rem; background: var(--panel); border-radius: .5rem; }
.plots svg { display: block; width: 100%; max-width: 32rem; height: auto; margin: 0 auto; }
.plots figcaption { margin-top: .6rem; }
.plots .tall { grid-row: span 2; }
.plots .wide { grid-column: 1 / -1; }
.plots .wide svg { min-width: 40rem; max-width: 56rem; }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; margin: 0 0 1rem; font-size: .9rem; }
.example { margin: 0 0 1.5rem; padding: 1rem; background: var(--panel); border-radius: .5rem; }
.example > figcaption { margin-bottom: .6rem; overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(8rem, 1fr)); gap: .6rem; }
.tiles img { width: 100%; height: auto; display: block; border-radius: .25rem; }
.tiles img.crisp { image-rendering: pixelated; }
.tiles figcaption { font-size: .8rem; }
@media print { .example, .plots > figure { break-inside: avoid; } }
"""
