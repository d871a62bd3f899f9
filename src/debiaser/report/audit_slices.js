// Slices of what the biased model misclassifies, each tagged as a whole, and a map of the features.
// This word as the page marks with it; one that it does not know becomes a tag, where there is room for it.
const nameTag = (tag) => {
  const names = find("tags"), before = names.value, known = () => review.spelling(tag);
  const write = (text) => { names.value = text; names.dispatchEvent(new Event("change")); };
  if (!known()) write([before, tag].filter(Boolean).join(", "));
  if (!known()) write(before);
  return known();
};
const tagForm = (places) => {
  const input = make("input", { type: "text", maxlength: 60, "aria-label": "A tag for this slice", placeholder: "what they share" });
  const told = make("output", { class: "quiet" });
  const form = make("form", { class: "filters" }, input, make("button", { type: "submit" }, "Tag these " + places.length), told);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const word = input.value.replaceAll(/[\s,]+/g, " ").trim(), tag = word && nameTag(word);
    if (!word) { told.textContent = "Type a word first."; return; }
    if (!tag) { told.textContent = "This word has a key of its own, or there are nine tags already."; return; }
    for (const place of places) review.set(place, tag);
    told.textContent = places.length + " tagged";
  });
  return form;
};
const OPEN_SLICES = 12;
const drawSlices = (home) => {
  const things = data.kind === "text" ? " texts" : " images";
  const slice = (one) => make("div", { class: "slice" },
    make("h3", {}, one.class, make("span", { class: "quiet" }, " mostly predicted as " + one.says + "; "
      + one.n.toLocaleString("en") + things + ", of which a plain model gets " + percent(one.plain_accuracy / 100) + " right")),
    one.places.length ? cardList(one.places, listKind(true)) : null, one.places.length ? tagForm(one.places) : null);
  home.append(...data.slices.slice(0, OPEN_SLICES).map(slice));
  const rest = data.slices.slice(OPEN_SLICES);
  if (rest.length) home.append(make("details", {}, make("summary", {}, rest.length + " more slices"), ...rest.map(slice)));
};
const SERIES = [1, 4, 3, 2, 5, 6, 7, 0]; // neighbours far apart
const dotColour = (label) => data.names.length <= 9 ? "var(--series-" + SERIES[label] + ")" : "hsl(" + Math.round(label * 137.5) % 360 + " 55% 55%)";
const drawMap = (home) => {
  const SIDE = [1000, 640], points = data.map, dots = [];
  const shape = (tag, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };
  const at = (number) => [points.x[number] * SIDE[0], (1 - points.y[number]) * SIDE[1]];
  const drawing = shape("svg", { viewBox: "-15 -15 1030 670", role: "img", "aria-label": "Map of the features, coloured by class" });
  const tip = make("div", { class: "map-tip" });
  tip.hidden = true;
  points.x.forEach((_, number) => {
    const [x, y] = at(number), dot = shape("circle", { cx: x.toFixed(1), cy: y.toFixed(1), r: points.wrong[number] ? 8 : 6 });
    dot.style.setProperty("--dot", dotColour(points.label[number]));
    if (points.wrong[number]) dot.classList.add("ring");
    dots.push(dot);
  });
  drawing.append(...dots.filter((_, number) => !points.wrong[number]), ...dots.filter((_, number) => points.wrong[number]));
  let current, only = null;
  const shown = (number) => only === null || points.label[number] === only;
  const nearest = (event) => {
    const box = drawing.getBoundingClientRect(), scale = 1030 / box.width;
    const x = (event.clientX - box.left) * scale - 15, y = (event.clientY - box.top) * scale - 15;
    let best, least = 30 * 30;
    points.x.forEach((_, number) => {
      const [left, top] = at(number), away = (left - x) ** 2 + (top - y) ** 2;
      if (away < least && shown(number)) [best, least] = [number, away];
    });
    return best;
  };
  const point = (number) => {
    if (current !== undefined) dots[current].classList.remove("here");
    current = number;
    tip.hidden = number === undefined;
    if (tip.hidden) return;
    const place = points.place[number], sample = data.samples[place], known = place !== null;
    dots[number].classList.add("here");
    tip.replaceChildren(...(sample ? [sample.src ? make("img", { src: sample.src, alt: "" }) : sample.text.slice(0, 120) + " … "] : []),
      known ? describe(place) : className(points.label[number]));
    const scale = drawing.getBoundingClientRect().width / 1030, [x, y] = at(number), left = (x + 15) * scale;
    tip.style.left = Math.max(0, left > home.clientWidth / 2 ? left - tip.offsetWidth - 12 : left + 12) + "px";
    tip.style.top = (y + 15) * scale + 12 + "px";
  };
  drawing.addEventListener("pointermove", (event) => point(nearest(event)));
  drawing.addEventListener("pointerleave", () => point());
  drawing.addEventListener("click", (event) => {
    const place = points.place[nearest(event)];
    if (place !== null && place !== undefined) enlarged.open(place, [place]);
  });
  const choose = (label) => {
    only = only === label ? null : label;
    dots.forEach((dot, number) => dot.classList.toggle("dim", !shown(number)));
    for (const button of find("map-legend").children) button.setAttribute("aria-pressed", String(Number(button.dataset.label) === only));
  };
  for (const label of [...new Set(points.label)].sort((a, b) => a - b).slice(0, 30)) {
    const swatch = make("span", { class: "swatch" });
    swatch.style.setProperty("--dot", dotColour(label));
    const button = make("button", { type: "button", "data-label": label, "aria-pressed": "false" }, swatch, " ", className(label));
    button.addEventListener("click", () => choose(label));
    find("map-legend").append(button);
  }
  home.prepend(drawing);
  home.append(tip);
};
draw("slice-list", drawSlices);
draw("map", drawMap);
