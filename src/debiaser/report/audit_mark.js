// Marks: by key or button, kept in this browser (or by `debiaser mark`), saved as the CSV file that `--marks` takes.
var review = (() => {
  const KINDS = { aligned: "follows the shortcut", conflicting: "goes against it", mislabelled: "mislabelled" };
  const LETTERS = { a: "aligned", c: "conflicting", m: "mislabelled" };
  const MOST_TAGS = 9;
  const served = find("served") && JSON.parse(find("served").textContent); // put there by `debiaser mark`
  let marks = new Map(), tags = [], history = [], carried = [], sending = Promise.resolve(), near = false;
  let written = new Map(); // lines of the file that `debiaser mark` writes, as this page knows them

  const isKind = (mark) => Object.hasOwn(KINDS, mark);
  const words = (mark) => isKind(mark) ? KINDS[mark] : mark;
  // Tags, or whether it follows the shortcut: a file holds one or the other, a wrong label goes with both.
  const counts = (mark) => mark !== undefined && (mark === "mislabelled" || isKind(mark) === !tags.length);
  const choices = () => tags.length ? [...tags.map((tag, number) => [String(number + 1), tag]), ["m", "mislabelled"]]
    : Object.entries(LETTERS);
  const markOf = (place) => counts(marks.get(place)) ? marks.get(place) : undefined;
  const used = () => [...marks].filter(([, mark]) => counts(mark));
  const toneOf = (mark) => mark && !isKind(mark) ? String(Math.max(tags.indexOf(mark), 0) % 7 + 1) : undefined;
  const dress = (one, mark) => { // how a marked sample looks anywhere in the page
    const told = { mark, tone: toneOf(mark), letter: mark && (isKind(mark) ? mark[0] : String(tags.indexOf(mark) + 1 || "·")) };
    for (const [name, value] of Object.entries(told)) {
      if (value === undefined) delete one.dataset[name]; else one.dataset[name] = value;
    }
  };

  const quoted = (text) => /[",;\r\n]|^\s|\s$/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
  const lines = () => [
    ...used().map(([place, mark]) => [data.redacted ? "" : cell("id", place), mark, data.names[cell("label", place)], cell("content", place)]),
    ...carried.filter(([, mark]) => counts(mark)),
  ];
  const asCsv = (some = lines()) => [["id", "mark", "label", "content"], ...some].map((line) => line.map(quoted).join(",") + "\n").join("");
  const bySample = (some) => new Map(some.map((line) => [[line[0], line[2], line[3]].join("\n"), line]));
  // Only what changed, a removed mark as an empty one: another page may write to the same file.
  const changes = (now) => [
    ...[...written].filter(([sample]) => !now.has(sample)).map(([, [id, , label, content]]) => [id, "", label, content]),
    ...[...now].filter(([sample, line]) => (written.get(sample) || [])[1] !== line[1]).map(([, line]) => line),
  ];
  // Tags that differ only in case or spaces are one, spelt as in the field above.
  const alike = (one, other) => one.toLowerCase() === other.toLowerCase();
  const distinct = (words) => words.map((word) => word.replaceAll(/\s+/g, " ").trim())
    .filter((word, number, all) => word && all.findIndex((one) => alike(one, word)) === number);
  const spelling = (mark) => choices().map(([, one]) => one).find((one) => alike(one, mark));
  const respell = () => {
    for (const [place, mark] of marks) marks.set(place, spelling(mark) || mark);
    for (const line of carried) line[1] = spelling(line[1]) || line[1];
  };
  // Marks that were there before: of an earlier run, or in the file of `debiaser mark`.
  const take = ({ place, id, mark, label, content }) => {
    if (place >= 0) marks.set(place, mark); else carried.push([id, mark, label, content]);
  };
  const placeOf = () => {
    const known = new Map();
    data.rows.content.forEach((content, place) => { if (content) known.set(content + "\n" + data.names[cell("label", place)], place); });
    data.rows.id.forEach((id, place) => known.set("id\n" + id, place));
    return ({ id, label, content }) => {
      const named = data.redacted ? undefined : known.get("id\n" + id);
      if (named !== undefined && (!content || cell("content", named) === content)) return named;
      return content ? known.get(content + "\n" + label) ?? -1 : -1;
    };
  };
  const load = () => {
    if (!served || !served.marks) data.marks.forEach(take);
    if (served) {
      const find = placeOf();
      for (const one of served.marks || []) {
        const [mark] = distinct([one.mark]);
        if (mark) take({ ...one, mark: LETTERS[mark.toLowerCase()] || mark, place: find(one) });
      }
      written = bySample((served.marks || []).map(({ id, mark, label, content }) => [id, mark, label, content]));
    } else {
      try {
        const stored = JSON.parse(localStorage.getItem(data.key) || "{}");
        const places = new Map(data.rows.row.map((row, place) => [row, place]));
        if (stored.marks) marks = new Map(stored.marks.filter(([row]) => places.has(row)).map(([row, mark]) => [places.get(row), String(mark)]));
        tags = (stored.tags || []).map(String).slice(0, MOST_TAGS);
      } catch { /* without a store the marks last as long as the page */ }
    }
    if (!tags.length) { // as most of the marks say
      const named = [...marks.values(), ...carried.map((line) => line[1])].filter((mark) => mark !== "mislabelled");
      const own = named.filter((mark) => !isKind(mark));
      if (own.length > named.length / 2) tags = distinct(own).slice(0, MOST_TAGS);
    }
    respell();
  };
  const say = (line) => { find("last").textContent = line; };
  const send = async () => {
    try {
      const now = bySample(lines()), body = asCsv(changes(now));
      const answer = await fetch("marks?token=" + served.token, { method: "POST", body, headers: { "Content-Type": "text/csv" } });
      if (!answer.ok) throw new Error();
      written = now;
      find("kept").textContent = "Written to " + served.file;
    } catch {
      find("kept").textContent = "Not written: debiaser mark is no longer running. Start it again, or save the file from here.";
    }
  };
  const keep = () => {
    if (served) { sending = sending.then(send); return; }
    try {
      const rows = [...marks].map(([place, mark]) => [cell("row", place), mark]);
      localStorage.setItem(data.key, JSON.stringify({ tags, marks: rows }));
    } catch { /* see above */ }
  };
  const show = () => {
    for (const one of document.querySelectorAll(".sample")) dress(one, markOf(Number(one.dataset.place)));
    const all = lines().map((line) => line[1]), kinds = [...new Set(all)];
    const order = choices().map(([, mark]) => mark);
    kinds.sort((first, second) => order.indexOf(first) - order.indexOf(second));
    find("counter").textContent = all.length
      ? all.length + " marked: " + kinds.map((kind) => all.filter((mark) => mark === kind).length + " " + words(kind)).join(", ")
      : "Nothing marked yet";
    const other = marks.size + carried.length - all.length;
    find("other").textContent = other ? other + (tags.length ? " marked without tags are" : " tags are") + " kept, not saved." : "";
    find("to-marks").textContent = all.length + " marked";
    find("save").disabled = !all.length;
    find("to-marks").hidden = !all.length || near;
    find("clear").hidden = !(marks.size + carried.length);
    table.paint();
    enlarged.showMark();
    marker.show();
  };
  const set = (place, mark) => {
    history.push([place, marks.get(place)]);
    if (mark) marks.set(place, spelling(mark) || mark); else marks.delete(place);
    say(titleOf(place) + (mark ? ": " + words(mark) : ": mark removed"));
    keep();
    show();
  };
  // The mark of this sample; where it has none, the latest change. Which sample that was.
  const undo = (place) => {
    if (place !== undefined && markOf(place)) { set(place, undefined); return place; }
    const last = history.pop();
    if (last) { set(...last); history.pop(); }
    return last && last[0];
  };
  const retag = (text) => {
    const named = distinct(text.split(","));
    const taken = named.filter((tag) => isKind(tag.toLowerCase()) || Object.hasOwn(LETTERS, tag.toLowerCase()));
    const next = named.filter((tag) => !taken.includes(tag)).slice(0, MOST_TAGS);
    const changed = next.map((tag, number) => number).filter((number) => !alike(next[number], tags[number] || ""));
    if (next.length === tags.length && changed.length === 1) { // one was written in another way
      const [before, after] = [tags[changed[0]], next[changed[0]]];
      for (const [place, mark] of marks) if (mark === before) marks.set(place, after);
      for (const line of carried) if (line[1] === before) line[1] = after;
    }
    tags = next;
    respell();
    find("tags-told").textContent = taken.length ? "“" + taken[0] + "” has a key of its own; choose another word."
      : named.length > MOST_TAGS ? "The first nine are used." : "";
    keep();
    show();
  };
  const save = () => {
    const address = URL.createObjectURL(new Blob([asCsv()], { type: "text/csv" }));
    make("a", { href: address, download: "marks.csv" }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
    find("after-save").hidden = false;
  };
  const start = () => {
    load();
    find("tags").value = tags.join(", ");
    find("tags").addEventListener("change", () => retag(find("tags").value));
    find("tags-form").addEventListener("submit", (event) => { event.preventDefault(); marker.focus(); });
    find("save").addEventListener("click", save);
    find("clear").addEventListener("click", () => {
      if (!confirm("Remove all marks?")) return;
      marks.clear();
      carried = [];
      history = [];
      keep();
      show();
    });
    new IntersectionObserver(([seen]) => {
      near = seen.isIntersecting;
      show();
    }).observe(find("marking"));
    if (served) {
      find("kept").textContent = "Every mark is written to " + served.file;
      find("next-marks").textContent = served.command;
      find("after-told").textContent = "When you are done:";
      find("after-save").hidden = false;
    }
    show();
  };
  return { set, undo, start, words, choices, spelling, markOf, dress, toneOf, keyed: (key) => (choices().find(([one]) => one === key) || [])[1] };
})();

// Buttons for all marks of a sample, in the dialog and in the marker.
const markButtons = (mark) => review.choices().map(([key, one]) => make("button",
  { type: "button", "data-mark": one, "data-tone": review.toneOf(one), "aria-pressed": String(one === mark), "aria-keyshortcuts": key },
  make("kbd", { "aria-hidden": "true" }, key), " ", one === "mislabelled" ? "Mislabelled" : review.words(one)));
const saysAll = (shares) => shares.map(([index, share]) => className(index) + " (" + percent(share) + ")").join(", ");

// One of the samples to mark at a time, large.
var marker = (() => {
  const home = find("marker"), list = data.to_mark;
  let at = 0, drawn;
  const fact = (name, value) => make("div", {}, make("dt", {}, name), make("dd", {}, value));
  const left = () => list.filter((place) => !review.markOf(place)).length;
  const picture = (place) => {
    const sample = data.samples[place];
    if (sample.text !== undefined) return make("p", { class: "prose-text", tabindex: 0 }, sample.text);
    return make("img", { src: sample.src, alt: describe(place) });
  };
  const show = () => {
    if (!home) return;
    const place = list[at], sample = data.samples[place], done = list.length - left();
    if (drawn !== place) {
      find("marker-body").replaceChildren(picture(place));
      find("marker-facts").replaceChildren(fact("Label", make("b", {}, className(cell("label", place)))),
        fact("Biased model says", saysAll(sample.easy)), fact("Plain model says", saysAll(sample.plain)), fact("Sample", titleOf(place)));
      drawn = place;
    }
    find("marker-bar").value = done;
    find("marker-count").textContent = done + " of " + list.length + (left() ? "" : ": all marked. Save them now.");
    home.classList.toggle("done", !left());
    find("marker-at").textContent = "sample " + (at + 1);
    find("marker-marks").replaceChildren(...markButtons(review.markOf(place)));
  };
  const step = (by) => {
    at = (at + by + list.length) % list.length;
    show();
  };
  const mark = (one) => {
    const place = list[at];
    review.set(place, one);
    const next = [...list.slice(at + 1), ...list.slice(0, at)].find((each) => !review.markOf(each));
    if (one && next !== undefined) at = list.indexOf(next);
    show();
  };
  const undo = () => {
    const place = review.undo(list[at]);
    if (list.includes(place)) at = list.indexOf(place);
    show();
  };
  const inView = () => {
    const box = find("marker-body").getBoundingClientRect();
    return box.bottom > 80 && box.top < innerHeight - 80;
  };
  // Whether keys are for it: it has the focus, or nothing has and it is in view.
  const active = () => home && (home.contains(document.activeElement) || (document.activeElement === document.body && inView()));
  const onKey = (event) => {
    const one = review.keyed(event.key);
    const onButton = event.target.closest("button") && event.key === " ";
    const by = { " ": 1, ArrowRight: 1, ArrowLeft: -1, Backspace: -1 }[event.key];
    if (one) mark(one);
    else if (event.key === "u") undo();
    else if (by && !onButton) step(by);
    else return false;
    return true;
  };
  const start = () => {
    if (!home) return;
    at = Math.max(0, list.findIndex((place) => !review.markOf(place)));
    find("marker-undo").addEventListener("click", undo);
    find("marker-back").addEventListener("click", () => step(-1));
    find("marker-skip").addEventListener("click", () => step(1));
    find("marker-marks").addEventListener("click", (event) => {
      const button = event.target.closest("[data-mark]");
      if (!button) return;
      mark(button.getAttribute("aria-pressed") === "true" ? undefined : button.dataset.mark);
      home.focus({ preventScroll: true });
    });
    show();
  };
  return { start, show, onKey, active, focus: () => home && home.focus() };
})();
