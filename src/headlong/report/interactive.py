"""What a page of many tables needs to be browsed: sorting, and a line that names the point under the pointer.

The page is whole without it: :data:`SCRIPT` turns headings of columns into buttons, lets the marks of plots take the focus,
and fetches nothing. A content policy in the page forbids every request.
"""

from __future__ import annotations

POLICY = (
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
    'script-src \'unsafe-inline\'; img-src data:">\n<link rel="icon" href="data:,">'
)
STYLE = """
th button { font: inherit; font-weight: 600; color: inherit; background: none; border: 0; padding: 0; cursor: pointer;
  text-align: inherit; } th button::after { content: " \\2195"; color: var(--soft); }
th[aria-sort="ascending"] button::after { content: " \\2191"; } th[aria-sort="descending"] button::after { content: " \\2193"; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
svg g[tabindex]:hover .mark, svg g[tabindex]:focus .mark { fill: var(--ink); } svg g[tabindex]:focus { outline: none; }
.named { min-height: 1.4em; margin: .2rem 0 0; font-size: .9rem; } section { scroll-margin-top: 1rem; }
@media (max-width: 40rem) { body { padding: .6rem; } table { font-size: .82rem; } th, td { padding: .25rem .35rem; }
  tbody th { white-space: normal; } .spread { display: block; color: var(--soft); } svg { min-width: 26rem; } }
"""
SCRIPT = """
'use strict';
const units = {'µs': 1e-6, 'ms': 1e-3, 's': 1, 'KiB': 1024, 'MiB': 1048576, 'GiB': 1073741824};
function key(cell) {
  const text = cell.textContent.trim();
  const found = /^[<>]?\\s*(-?[\\d,]*\\.?\\d+(?:e[-+]?\\d+)?)\\s*(µs|ms|s|KiB|MiB|GiB)?(?![a-z])/i.exec(text);
  if (!found) return text === '' || text === '–' ? null : text;
  return parseFloat(found[1].replace(/,/g, '')) * (units[found[2]] || 1);
}
function order(a, b) {
  if (a === null || b === null) return (a === null) - (b === null);
  if (typeof a === 'number' && typeof b === 'number') return a - b;
  return String(a).localeCompare(String(b));
}
for (const table of document.querySelectorAll('table')) {
  table.querySelectorAll('thead th').forEach((head, column) => {
    const button = document.createElement('button');
    button.type = 'button';
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener('click', () => {
      const sign = head.getAttribute('aria-sort') === 'ascending' ? -1 : 1;
      table.querySelectorAll('thead th').forEach(other => other.removeAttribute('aria-sort'));
      head.setAttribute('aria-sort', sign > 0 ? 'ascending' : 'descending');
      const body = table.tBodies[0];
      const rows = Array.from(body.rows, (row, place) => [key(row.cells[column]), place, row]);
      rows.sort((a, b) => {
        if (a[0] === null || b[0] === null) return order(a[0], b[0]) || a[1] - b[1];
        return sign * order(a[0], b[0]) || a[1] - b[1];
      });
      body.append(...rows.map(row => row[2]));
    });
  });
}
for (const figure of document.querySelectorAll('figure')) {
  const line = document.createElement('p');
  line.className = 'named';
  line.setAttribute('role', 'status');
  figure.append(line);
  for (const mark of figure.querySelectorAll('svg g')) {
    const title = mark.querySelector('title');
    if (!title) continue;
    mark.setAttribute('tabindex', '0');
    mark.setAttribute('role', 'img');
    mark.setAttribute('aria-label', title.textContent);
    const name = () => { line.textContent = title.textContent; };
    for (const event of ['pointerenter', 'focus']) mark.addEventListener(event, name);
  }
}
"""


def browsable(page: str) -> str:
    """A page of :func:`headlong.report.page.page` with the script and the policy."""
    page = page.replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n{POLICY}', 1)
    page = page.replace("</style>", f"{STYLE}</style>", 1)
    return page.replace("</body>", f"<script>{SCRIPT}</script>\n</body>", 1)
