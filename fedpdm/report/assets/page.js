"use strict";
// Tabs, sorting and filtering.

const tabs = [...document.querySelectorAll('[role="tab"]')];

// The part after # in the address: not the panel's id, or the browser would move the focus there.
const address = (tab) => tab.id.replace("tab-", "");

function choose(tab, focus) {
  for (const other of tabs) {
    const chosen = other === tab;
    other.setAttribute("aria-selected", chosen);
    other.tabIndex = chosen ? 0 : -1;
    document.getElementById(other.getAttribute("aria-controls")).hidden = !chosen;
  }
  if (focus) tab.focus();
}

for (const tab of tabs) {
  tab.addEventListener("click", () => {
    choose(tab, false);
    history.replaceState(null, "", `#${address(tab)}`);
  });
  tab.addEventListener("keydown", (event) => {
    const here = tabs.indexOf(tab), count = tabs.length;
    const to = { ArrowRight: here + 1, ArrowLeft: here - 1 + count, Home: 0, End: count - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    choose(tabs[to % count], true);
  });
}

function chooseByAddress() {
  const wanted = tabs.find((tab) => `#${address(tab)}` === location.hash);
  if (wanted) choose(wanted, false);
}
addEventListener("hashchange", chooseByAddress);
chooseByAddress();

for (const button of document.querySelectorAll(".sortable th button")) {
  const head = button.closest("th"), table = head.closest("table"), column = head.cellIndex;
  button.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = (row) => Number(row.cells[column].dataset.value);
    const rows = [...table.tBodies[0].rows].sort((a, b) => (down ? value(b) - value(a) : value(a) - value(b)));
    table.tBodies[0].append(...rows);
  });
}

for (const group of document.querySelectorAll(".filters"))
  for (const button of group.querySelectorAll("button"))
    button.addEventListener("click", () => {
      for (const other of group.querySelectorAll("button")) other.setAttribute("aria-pressed", other === button);
      const wanted = button.dataset.filter;
      for (const row of group.parentElement.querySelectorAll("tr[data-verdict]"))
        row.hidden = wanted !== "all" && row.dataset.verdict !== wanted;
    });

// On paper there are no tabs: everything is shown, and what was folded is opened.
addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll(".guarantee details, #panel-again details")) part.open = true;
});
