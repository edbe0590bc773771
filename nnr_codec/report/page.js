"use strict";
(() => {
  const table = document.querySelector("table");
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const key = (row, column) => {
    const cell = row.cells[column];
    return "v" in cell.dataset ? (cell.dataset.v === "" ? NaN : Number(cell.dataset.v)) : cell.textContent;
  };
  const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : a - b);

  const sort = (heading, descending) => {
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const keyed = rows.map((row, index) => ({ row, index, value: key(row, heading.cellIndex) }));
    keyed.sort((a, b) => {
      const missing = Number(Number.isNaN(a.value)) - Number(Number.isNaN(b.value));
      const both = missing || (Number.isNaN(a.value) ? 0 : compare(a.value, b.value) * (descending ? -1 : 1));
      return both || a.index - b.index;
    });
    body.append(...keyed.map((entry) => entry.row));
  };
  for (const heading of table.tHead.rows[0].cells) {
    if (!heading.dataset.sort) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const now = heading.getAttribute("aria-sort");
      sort(heading, now ? now === "ascending" : heading.dataset.sort === "descending");
    });
  }

  const controls = document.querySelector(".controls");
  const [name, coding] = [controls.querySelector("input"), controls.querySelector("select")];
  const status = controls.querySelector("output");
  const filter = () => {
    const wanted = name.value.trim().toLowerCase();
    let shown = 0;
    for (const row of rows) {
      row.hidden = !row.cells[0].textContent.toLowerCase().includes(wanted) || (coding.value && row.dataset.coding !== coding.value);
      shown += row.hidden ? 0 : 1;
    }
    status.textContent = shown === rows.length ? "" : `${shown} of ${rows.length} tensors`;
  };
  name.addEventListener("input", filter);
  coding.addEventListener("change", filter);
  controls.hidden = false;
})();
