"use strict";
// The page is complete without this script: it adds filters, readings for touch and keyboards, and printing with everything open.
for (const filters of document.querySelectorAll(".filters")) {
  const cards = [...filters.parentElement.querySelectorAll(".card")];
  const buttons = [...filters.querySelectorAll("button")];
  const told = filters.querySelector("output");
  filters.hidden = false;
  filters.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    for (const one of buttons) one.setAttribute("aria-pressed", String(one === button));
    for (const card of cards) card.hidden = !card.dataset.kinds.split(" ").includes(button.dataset.show);
    told.textContent = cards.filter((card) => !card.hidden).length + " of " + cards.length;
  });
}
for (const gallery of document.querySelectorAll(".gallery")) {
  const reading = gallery.querySelector(".reading");
  const read = (event) => {
    if (event.target.tagName === "IMG") reading.textContent = event.target.alt;
  };
  gallery.addEventListener("click", read);
  gallery.addEventListener("pointerover", read);
}
const openTarget = () => {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  const details = target && target.closest("details");
  if (details) details.open = true;
};
window.addEventListener("hashchange", openTarget);
openTarget();
let closed = [];
window.addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open])")];
  for (const details of closed) details.open = true;
});
window.addEventListener("afterprint", () => {
  for (const details of closed) details.open = false;
});
