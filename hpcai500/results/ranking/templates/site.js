// Makes tables sortable, and the filter usable. Without it, the pages show the same content.
"use strict";

(() => {
  const LEVELS = ["hardware", "system", "free"];
  const all = (selector, within) => [...(within || document).querySelectorAll(selector)];

  function valueOf(row, column) {
    const cell = row.cells[column];
    return cell.dataset.value === undefined ? cell.textContent.trim() : cell.dataset.value;
  }

  // Unknown values sort last in both directions.
  function comparing(column, isNumber, sign) {
    return (one, other) => {
      const [a, b] = [valueOf(one, column), valueOf(other, column)];
      if (a === "" || b === "") return (a === "") - (b === "");
      return sign * (isNumber ? Number(a) - Number(b) : a.localeCompare(b, "en", { numeric: true, sensitivity: "base" }));
    };
  }

  function sortBy(table, heading) {
    const before = heading.getAttribute("aria-sort");
    const first = heading.dataset.first || "ascending";
    const other = first === "ascending" ? "descending" : "ascending";
    const direction = before === first ? other : first;
    all("thead th", table).forEach(one => one.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", direction);
    const isNumber = heading.dataset.sort === "number";
    const rows = [...table.tBodies[0].rows];
    rows.sort(comparing(heading.cellIndex, isNumber, direction === "ascending" ? 1 : -1));
    table.tBodies[0].append(...rows);
  }

  function makeSortable(table) {
    for (const heading of all("th[data-sort]", table)) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      button.addEventListener("click", () => sortBy(table, heading));
      heading.append(button);
    }
  }

  // Bars move up into the place of hidden ones, and the drawing shrinks.
  function drawBars(figure, places) {
    const drawing = figure.querySelector("svg");
    const bars = all("g[data-entry]", drawing);
    if (!bars.length) return;
    const top = Number(drawing.dataset.top), step = Number(drawing.dataset.step);
    let shown = 0;
    for (const bar of bars) {
      const place = places.get(bar.dataset.entry);
      bar.classList.toggle("gone", place === undefined);
      if (place === undefined) continue;
      bar.setAttribute("transform", `translate(0 ${top + step * shown++})`);
      bar.querySelector(".rank").textContent = place;
    }
    drawing.setAttribute("height", top + step * shown);
    figure.classList.toggle("gone", shown === 0);
  }

  function filterGroup(group, filter) {
    const shown = new Map();
    const limit = LEVELS.indexOf(filter.level);
    for (const row of all("tbody tr", group)) {
      const { level, date, entry } = row.dataset;
      const isEarly = filter.from && !(date && date >= filter.from);
      const isLate = filter.to && !(date && date <= filter.to);
      const stays = LEVELS.indexOf(level) <= limit && !isEarly && !isLate;
      row.hidden = !stays;
      if (!stays) continue;
      const place = row.dataset[filter.level];
      shown.set(entry, place);
      row.cells[0].textContent = place;
      row.cells[0].dataset.value = place;
    }
    const belongs = !filter.benchmark || group.dataset.benchmark === filter.benchmark;
    group.hidden = !belongs;
    group.querySelector(".nothing").hidden = shown.size > 0;
    group.querySelector(".scroll").hidden = shown.size === 0;
    drawBars(group.querySelector(".bars"), shown);
    return belongs ? shown.size : 0;
  }

  function makeFilter(form) {
    const groups = all(".group");
    const rows = all(".group tbody tr").length;
    const apply = () => {
      const filter = Object.fromEntries(new FormData(form));
      const shown = groups.map(group => filterGroup(group, filter)).reduce((sum, one) => sum + one, 0);
      form.querySelector("[role=status]").textContent = `${shown} of ${rows} ranked submissions shown`;
    };
    form.addEventListener("input", apply);
    form.addEventListener("submit", event => event.preventDefault());
    // The fields keep their old values until the event ends.
    form.addEventListener("reset", () => setTimeout(apply));
    form.hidden = false;
    apply();
  }

  all("table.sortable").forEach(makeSortable);
  const form = document.getElementById("filters");
  if (form) makeFilter(form);
})();
