// Reviewing: marks by key or button, kept in this browser, saved as a CSV file that `--confirmed` takes.
var review = (() => {
  const WORDS = { aligned: "follows the shortcut", conflicting: "goes against it", mislabelled: "mislabelled" };
  const KEYS = { a: "aligned", c: "conflicting", m: "mislabelled" };
  let marks = new Map(), history = [];
  const load = () => {
    try {
      const stored = JSON.parse(localStorage.getItem(data.key) || "[]");
      const places = new Map(data.rows.row.map((row, place) => [row, place]));
      marks = new Map(stored.filter(([row, mark]) => places.has(row) && mark in WORDS).map(([row, mark]) => [places.get(row), mark]));
    } catch { /* without a store the marks last as long as the page */ }
  };
  const keep = () => {
    try {
      localStorage.setItem(data.key, JSON.stringify([...marks].map(([place, mark]) => [cell("row", place), mark])));
    } catch { /* see above */ }
  };
  const show = () => {
    for (const one of document.querySelectorAll(".sample")) {
      const mark = marks.get(Number(one.dataset.place));
      if (mark) { one.dataset.mark = mark; one.dataset.letter = mark[0]; } else { delete one.dataset.mark; }
    }
    const counts = Object.keys(WORDS).map((mark) => [mark, [...marks.values()].filter((one) => one === mark).length]);
    find("counter").textContent = marks.size
      ? marks.size + " marked: " + counts.filter(([, count]) => count).map(([mark, count]) => count + " " + WORDS[mark]).join(", ")
      : "Nothing marked yet";
    find("review").hidden = !marks.size;
    table.paint();
    enlarged.showMark();
  };
  const set = (place, mark) => {
    history.push([place, marks.get(place)]);
    if (mark) marks.set(place, mark); else marks.delete(place);
    find("last").textContent = titleOf(place) + (mark ? ": " + WORDS[mark] : ": mark taken back");
    keep();
    show();
  };
  // The mark of the sample in focus; where it has none, the latest change.
  const undo = (place) => {
    if (place !== undefined && marks.has(place)) { set(place, undefined); return; }
    const last = history.pop();
    if (last) { set(...last); history.pop(); }
  };
  const quoted = (text) => /[",\r\n]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
  const examined = data.total - data.unreadable;
  const asCsv = () => (data.redacted ? "row,mark,label,rows\n" : "id,mark,label\n") + [...marks].map(([place, mark]) =>
    quoted(String(cell("id", place))) + "," + mark + "," + quoted(data.names[cell("label", place)])
    + (data.redacted ? "," + examined : "") + "\n").join("");
  const save = () => {
    const address = URL.createObjectURL(new Blob([asCsv()], { type: "text/csv" }));
    make("a", { href: address, download: "confirmed.csv" }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  };
  const start = () => {
    load();
    find("save").addEventListener("click", save);
    find("clear").addEventListener("click", () => {
      if (!confirm("Take back all marks?")) return;
      marks.clear();
      history = [];
      keep();
      show();
    });
    show();
  };
  return { WORDS, KEYS, set, undo, start, markOf: (place) => marks.get(place) };
})();

// One sample, large, in a dialog; steps go through the list it was opened from.
var enlarged = (() => {
  const dialog = find("enlarged"), filters = find("dialog-look").firstElementChild;
  let place, list = [];
  const facts = () => {
    const row = (name, ...value) => make("div", {}, make("dt", {}, name), make("dd", {}, ...value));
    const sample = data.samples[place], told = [row("Label", className(cell("label", place)))];
    told.push(row("Biased model says", sample
      ? sample.easy.map(([index, share]) => className(index) + " (" + percent(share) + ")").join(", ")
      : className(cell("predicted", place))));
    told.push(row("Kind", KIND_WORDS[kindOf(place)]));
    const chances = [["p_conflicting", "going against"], ["p_mislabelled", "mislabelled"]].filter(([name]) => cell(name, place) !== null);
    if (chances.length) told.push(row("Probability", chances.map(([name, words]) => words + " " + percent(cell(name, place))).join(", ")));
    if (cell("rank", place) !== null) told.push(row("Rank", cell("rank", place).toLocaleString("en") + " of " + data.total.toLocaleString("en")));
    if (data.rows.path && cell("path", place)) told.push(row("Path", cell("path", place)));
    return told;
  };
  const showMark = () => {
    for (const button of dialog.querySelectorAll("[data-mark]")) {
      button.setAttribute("aria-pressed", String(review.markOf(place) === button.dataset.mark));
    }
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
  const mark = review.KEYS[event.key];
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
let folded = [];
window.addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  for (const details of folded) details.open = true;
});
window.addEventListener("afterprint", () => {
  for (const details of folded) details.open = false;
});
