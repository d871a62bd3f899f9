// The table: all rows live in `data`, only those in view are elements.
const table = (() => {
  const HEIGHT = 44, SPARE = 8;
  const home = find("window"), filters = find("table-filters");
  const numeric = (name) => (place) => { const value = cell(name, place); return value === null ? NaN : value; };
  const worded = (name) => (place) => className(cell(name, place)).toLowerCase();
  const drawn = (place) => {
    const share = cell("probability", place);
    return share === null ? "–" : "×" + Number((share * data.total).toPrecision(2));
  };
  const COLUMNS = [
    { name: "rank", title: "Rank", key: numeric("rank"), show: (place) => cell("rank", place) ?? "–" },
    { name: "id", title: "Sample", key: data.redacted ? numeric("row") : (place) => cell("id", place).toLowerCase() },
    { name: "label", title: "Label", key: worded("label"), show: (place) => className(cell("label", place)) },
    { name: "predicted", title: "Biased model says", key: worded("predicted"), show: (place) => className(cell("predicted", place)) },
    { name: "kind", title: "Kind", key: (place) => cell("kind", place), show: (place) => KIND_WORDS[kindOf(place)] },
    { name: "score", title: "Score", key: numeric("score"), show: (place) => { const value = cell("score", place); return value === null ? "–" : Number(value.toPrecision(3)); } },
    { name: "drawn", title: "Drawn", key: numeric("probability"), show: drawn },
  ];
  const searched = Array.from({ length: data.listed }, (_, place) => [cell("id", place), data.rows.path ? cell("path", place) : "",
    (data.samples[place] || {}).text || ""].join("\n").toLowerCase());
  let rows = [], current = 0, sorted = { column: COLUMNS[0], down: false }, asked = 0;
  const body = make("tbody"), heads = new Map();

  const idCell = (place) => {
    const sample = data.samples[place], one = make("td", { title: titleOf(place) });
    if (sample && sample.src) one.append(make("img", { src: sample.src, alt: "" }));
    one.append(titleOf(place));
    if (sample && sample.text) one.append(make("span", { class: "quiet wide" }, "  " + sample.text.slice(0, 120)));
    return one;
  };
  const line = (place, index) => {
    const mark = review.markOf(place);
    const one = make("tr", { id: "row-" + place, "data-place": place, "aria-rowindex": index + 2,
      class: index === current ? "current" : null });
    review.dress(one, mark);
    for (const column of COLUMNS) {
      if (column.name === "id") { one.append(idCell(place)); continue; }
      const marked = column.name === "kind" && mark;
      const content = marked ? make("span", { class: "marked-as" }, "you: " + review.words(mark)) : column.show(place);
      one.append(make("td", { class: "col-" + column.name + (["rank", "score", "drawn"].includes(column.name) ? " number" : "") }, content));
    }
    return one;
  };
  const filler = (count) => {
    const td = make("td");
    td.style.height = count * HEIGHT + "px";
    return make("tr", { class: "filler", "aria-hidden": "true" }, td);
  };
  const paint = () => {
    asked = 0;
    const from = Math.max(0, Math.min(Math.floor(home.scrollTop / HEIGHT) - SPARE, rows.length));
    const to = Math.min(rows.length, Math.ceil((home.scrollTop + home.clientHeight) / HEIGHT) + SPARE);
    body.replaceChildren(...(from ? [filler(from)] : []), ...rows.slice(from, to).map((place, number) => line(place, from + number)),
      ...(to < rows.length ? [filler(rows.length - to)] : []));
    home.setAttribute("aria-rowcount", rows.length + 1);
    if (rows.length) home.setAttribute("aria-activedescendant", "row-" + rows[current]);
    else home.removeAttribute("aria-activedescendant");
  };
  const later = () => { asked = asked || requestAnimationFrame(paint); };
  const goTo = (index) => {
    current = Math.max(0, Math.min(index, rows.length - 1));
    const head = home.querySelector("thead").offsetHeight, top = current * HEIGHT;
    if (top < home.scrollTop) home.scrollTop = top;
    else if (top + HEIGHT + head > home.scrollTop + home.clientHeight) home.scrollTop = top + HEIGHT + head - home.clientHeight;
    paint();
  };
  const compare = ({ column, down }) => (first, second) => {
    const [a, b] = [column.key(first), column.key(second)];
    if (a !== a || b !== b) return (a !== a) - (b !== b) || first - second; // what is unknown comes last either way
    return (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1) || first - second;
  };
  const choose = () => {
    const text = find("search").value.trim().toLowerCase(), kind = find("by-kind").value, name = find("by-class").value;
    rows = [];
    for (let place = 0; place < data.listed; place += 1) {
      const kindFits = !kind || (kind === "marked" ? review.markOf(place) : String(cell("kind", place)) === kind);
      if (kindFits && (!name || String(cell("label", place)) === name) && searched[place].includes(text)) rows.push(place);
    }
    rows.sort(compare(sorted));
    for (const [column, head] of heads) {
      if (column === sorted.column) head.setAttribute("aria-sort", sorted.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
    find("matches").textContent = rows.length.toLocaleString("en") + " of " + data.listed.toLocaleString("en");
    home.scrollTop = 0;
    current = 0;
    paint();
  };
  const head = (column) => {
    const button = make("button", { type: "button" }, column.title);
    button.addEventListener("click", () => {
      sorted = { column, down: sorted.column === column ? !sorted.down : ["score", "drawn"].includes(column.name) };
      choose();
    });
    const one = make("th", { scope: "col", class: "col-" + column.name + (["rank", "score", "drawn"].includes(column.name) ? " number" : "") }, button);
    heads.set(column, one);
    return one;
  };
  const onKey = (event) => {
    if (event.target !== home) return false;
    const page = Math.max(1, Math.floor(home.clientHeight / HEIGHT) - 2);
    const target = { ArrowDown: current + 1, j: current + 1, ArrowUp: current - 1, k: current - 1, PageDown: current + page,
      PageUp: current - page, Home: 0, End: rows.length - 1 }[event.key];
    if (target === undefined) return false;
    goTo(target);
    return true;
  };
  const start = () => {
    home.append(make("table", {}, make("thead", {}, make("tr", {}, ...COLUMNS.map(head))), body));
    const kinds = [...new Set(data.rows.kind.slice(0, data.listed))].sort();
    find("by-kind").append(new Option("all", ""), ...kinds.map((kind) => new Option(KIND_WORDS[data.kinds[kind]], kind)),
      new Option("marked by you", "marked"));
    const labels = [...new Set(data.rows.label.slice(0, data.listed))].sort((a, b) => a - b);
    find("by-class").append(new Option("all", ""), ...labels.map((label) => new Option(className(label), label)));
    filters.hidden = home.hidden = false;
    filters.addEventListener("input", choose);
    filters.addEventListener("submit", (event) => event.preventDefault());
    home.addEventListener("scroll", later, { passive: true });
    window.addEventListener("resize", later);
    choose();
  };
  return {
    start, paint, onKey, home,
    place: () => rows[current],
    list: () => rows,
    point: (place) => { if (rows.includes(place)) goTo(rows.indexOf(place)); },
  };
})();
