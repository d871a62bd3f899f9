// One sample, large, in a dialog; steps go through the list it was opened from.
var enlarged = (() => {
  const dialog = find("enlarged"), filters = find("dialog-look").firstElementChild;
  let place, list = [];
  const facts = () => {
    const row = (name, ...value) => make("div", {}, make("dt", {}, name), make("dd", {}, ...value));
    const sample = data.samples[place], told = [row("Label", className(cell("label", place)))];
    told.push(row("Biased model says", sample ? saysAll(sample.easy) : className(cell("predicted", place))));
    if (sample) told.push(row("Plain model says", saysAll(sample.plain)));
    told.push(row("Kind", KIND_WORDS[kindOf(place)]));
    const chances = [["p_conflicting", "going against"], ["p_mislabelled", "mislabelled"]].filter(([name]) => cell(name, place) !== null);
    if (chances.length) told.push(row("Probability", chances.map(([name, words]) => words + " " + percent(cell(name, place))).join(", ")));
    if (cell("rank", place) !== null) told.push(row("Rank", cell("rank", place).toLocaleString("en") + " of " + data.total.toLocaleString("en")));
    if (data.rows.path && cell("path", place)) told.push(row("Path", cell("path", place)));
    return told;
  };
  const showMark = () => {
    const focused = dialog.contains(document.activeElement) && document.activeElement.dataset.mark;
    find("dialog-marks").replaceChildren(...markButtons(review.markOf(place)));
    if (focused) [...find("dialog-marks").children].find((one) => one.dataset.mark === focused)?.focus();
  };
  const show = (next) => {
    place = next;
    const sample = data.samples[place], body = find("dialog-body");
    find("dialog-title").textContent = titleOf(place);
    body.replaceChildren(...(!sample ? [] : [sample.src ? stack(sample) : prose(sample, "prose-text", true)]));
    if (sample && sample.src) body.querySelector("img").alt = describe(place);
    offerLooks(body, filters, [sample]);
    if (sample && sample.src) setLook(body, filters, "plain");
    find("dialog-facts").replaceChildren(...facts());
    const at = list.indexOf(place);
    find("previous").disabled = at <= 0;
    find("following").disabled = at < 0 || at >= list.length - 1;
    showMark();
  };
  const step = (by) => {
    const next = list[list.indexOf(place) + by];
    if (next !== undefined) show(next);
  };
  const open = (next, from) => {
    list = from;
    show(next);
    if (!dialog.open) dialog.showModal();
  };
  const onKey = (event) => {
    const by = { ArrowRight: 1, ArrowDown: 1, j: 1, ArrowLeft: -1, ArrowUp: -1, k: -1 }[event.key];
    if (by) step(by);
    return Boolean(by);
  };
  const start = () => {
    find("close").addEventListener("click", () => dialog.close());
    find("previous").addEventListener("click", () => step(-1));
    find("following").addEventListener("click", () => step(1));
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close(); // beside it
      const button = event.target.closest("[data-mark]");
      if (button) review.set(place, button.getAttribute("aria-pressed") === "true" ? undefined : button.dataset.mark);
    });
    dialog.addEventListener("close", () => { if (document.activeElement === table.home) table.point(place); });
  };
  return { open, onKey, start, showMark, isOpen: () => dialog.open, place: () => place };
})();

// Moving between samples: one stop of the Tab key per group, arrows within and beyond it.
const samples = [...document.querySelectorAll(".sample")];
const nearest = (from, down) => {
  const here = from.getBoundingClientRect(), middle = (here.left + here.right) / 2;
  let best, least = Infinity;
  for (const one of samples) {
    const box = one.getBoundingClientRect(), away = down ? box.top - here.top : here.top - box.top;
    const distance = away * 3 + Math.abs((box.left + box.right) / 2 - middle);
    if (away > here.height / 2 && distance < least) [best, least] = [one, distance];
  }
  return best;
};
const moveFrom = (from, key) => {
  const at = samples.indexOf(from);
  if (key === "j" || key === "ArrowRight") return samples[at + 1];
  if (key === "k" || key === "ArrowLeft") return samples[at - 1];
  return key === "ArrowDown" || key === "ArrowUp" ? nearest(from, key === "ArrowDown") : undefined;
};
const placesOf = (one) => [...one.closest("[data-group]").querySelectorAll(".sample")].map((each) => Number(each.dataset.place));
document.addEventListener("focusin", (event) => {
  const one = event.target.closest(".sample");
  if (!one) return;
  for (const each of one.closest("[data-group]").querySelectorAll(".sample")) each.tabIndex = each === one ? 0 : -1;
});
document.addEventListener("click", (event) => {
  const one = event.target.closest(".sample, tr[data-place]");
  if (!one) return;
  const place = Number(one.dataset.place), inTable = one.tagName === "TR";
  if (inTable) { table.home.focus(); table.point(place); }
  enlarged.open(place, inTable ? table.list() : placesOf(one));
});
const keyed = (event) => {
  const focused = document.activeElement, one = focused && focused.closest(".sample");
  const inTable = focused === table.home;
  const place = enlarged.isOpen() ? enlarged.place() : one ? Number(one.dataset.place) : inTable ? table.place() : undefined;
  const mark = review.keyed(event.key);
  if (place === undefined && marker.active() && marker.onKey(event)) return true;
  if (event.key === "u") { review.undo(place); return true; }
  if (mark && place !== undefined) { review.set(place, mark); return true; }
  if (enlarged.isOpen()) return enlarged.onKey(event);
  if (inTable && event.key === "Enter" && place !== undefined) { enlarged.open(place, table.list()); return true; }
  if (inTable) return table.onKey(event);
  const next = one ? moveFrom(one, event.key) : event.key === "j" && focused === document.body ? samples[0] : undefined;
  if (next) next.focus();
  return Boolean(next);
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, pre")) return;
  if (keyed(event)) event.preventDefault();
});
enlarged.start();
table.start();
review.start();
marker.start();
