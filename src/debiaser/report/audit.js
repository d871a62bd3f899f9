"use strict";
// All that comes from the data enters the page as text nodes, attributes of our own names, or data URIs of images.
const data = JSON.parse(document.getElementById("data").textContent);
const find = (name) => document.getElementById(name);
const KIND_WORDS = {
  aligned: "follows the shortcut", conflicting: "goes against it", mislabelled: "likely mislabelled",
  unsure: "unsure", unreadable: "unreadable",
};
const make = (tag, attributes, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined).map((child) =>
    child instanceof Node ? child : String(child)));
  return element;
};
const cell = (name, place) => data.rows[name][place];
const className = (index) => data.names[index] || "–";
const percent = (share) => {
  if (share > 0 && share < 0.01) return "<1%";
  return share < 1 && share > 0.99 ? ">99%" : Math.round(share * 100) + "%";
};
const kindOf = (place) => data.kinds[cell("kind", place)];
const titleOf = (place) => (data.redacted ? "sample " : "") + cell("id", place);
const describe = (place) => {
  const parts = ["labelled " + className(cell("label", place)), "biased model says " + className(cell("predicted", place)),
    KIND_WORDS[kindOf(place)], titleOf(place)];
  return parts.join(", ");
};

const stack = (sample) => {
  const images = make("span", { class: "stack" }, make("img", { src: sample.src, alt: "" }));
  for (const model of ["easy", "debiased"]) {
    if (sample["heat_" + model]) images.append(make("img", { class: "heat heat-" + model, src: sample["heat_" + model], alt: "" }));
  }
  return images;
};
const colouredWords = (words, model) => {
  const line = make("span", { class: "words-" + model });
  for (const [word, weight] of words) {
    const part = make("span", Math.abs(weight) < 0.05 ? {} : { class: weight < 0 ? "word contrary" : "word" }, word);
    part.style.setProperty("--weight", Math.abs(weight));
    line.append(part, " ");
  }
  return line;
};
const prose = (sample, kind, look) => {
  const held = ["easy", "debiased"].filter((model) => look && sample["words_" + model]);
  const text = make("span", { class: [kind, ...held.map((model) => "has-" + model)].join(" ") });
  text.append(make("span", { class: "words-plain" }, sample.text));
  for (const model of held) text.append(colouredWords(sample["words_" + model], model));
  return text;
};

// A sample as a button: Enter or a click enlarges it, letters mark it.
const card = (place, caption, look) => {
  const sample = data.samples[place];
  const words = describe(place);
  const button = make("button", { type: "button", class: "sample", "data-place": place, tabindex: -1, title: words });
  if (kindOf(place) === "mislabelled") button.classList.add("doubt");
  if (data.kind === "text") {
    button.classList.add("prose");
    button.append(prose(sample, "excerpt", look));
  } else {
    button.append(look ? stack(sample) : make("img", { src: sample.src, alt: words }));
  }
  if (look && data.kind !== "text") button.setAttribute("aria-label", words);
  if (caption) button.append(make("span", { class: "caption" }, caption));
  return button;
};
const cardList = (places, kind, caption, look) => {
  const list = make("ul", { class: kind, "data-group": "" });
  for (const place of places) list.append(make("li", {}, card(place, caption && caption(place), look)));
  if (list.querySelector(".sample")) list.querySelector(".sample").tabIndex = 0;
  return list;
};
const listKind = (columns) => data.kind === "text" ? "prose-list" + (columns ? " columns" : "") : "thumbnails";
const saysOf = (place) => "says " + className(cell("predicted", place));

const drawGalleries = (home) => {
  if (Math.max(...data.galleries.map((one) => one.class.length)) <= 3) home.classList.add("short-names");
  home.append(make("div", { class: "gallery-head", "aria-hidden": "true" }, make("span"), make("span", {}, "Typical"),
    make("span", {}, "Going against the shortcut")));
  for (const one of data.galleries) {
    const side = (title, places, caption) => make("div", {}, make("p", { class: "side" }, title),
      places.length ? cardList(places, listKind(), caption) : make("p", { class: "quiet" }, "none found"));
    home.append(make("div", { class: "gallery-row" }, make("h3", {}, one.class), side("Typical", one.typical),
      side("Going against the shortcut", one.against, saysOf)));
  }
};
const drawStrips = () => {
  for (const home of document.querySelectorAll(".strips")) {
    for (const strip of data.swaps[home.dataset.view]) {
      const line = make("div", { class: strip.texts ? "strip of-texts" : "strip" });
      ["original", "taken from", "swapped"].forEach((title, number) => line.append(make("figure", {},
        strip.texts ? make("blockquote", {}, strip.texts[number]) : make("img", { src: strip.images[number], alt: title }),
        make("figcaption", {}, title, strip.texts ? ", " : make("br"), "says ", make("b", {}, strip.answers[number])))));
      home.append(line);
    }
  }
};
const draw = (name, paint) => {
  const home = find(name);
  if (home) paint(home);
};
document.body.classList.add(data.tiny ? "tiny" : "smooth");
draw("gallery-list", drawGalleries);
draw("mislabelled-list", (home) => home.append(cardList(data.mislabelled, listKind(true), (place) =>
  className(cell("label", place)) + "?")));
draw("look-list", (home) => home.append(cardList(data.looks, data.kind === "text" ? "prose-list columns" : "look-grid",
  (place) => "labelled " + className(cell("label", place)) + ", " + saysOf(place), true)));
draw("to-mark-list", (home) => home.append(cardList(data.to_mark, listKind(true), (place) =>
  className(cell("label", place)) + ", " + saysOf(place))));
draw("sheet-list", (home) => home.append(cardList(data.sheet, "thumbnails", (place) => className(cell("label", place)))));
drawStrips();

// Toggles over a group of samples: the biased model, the debiased one, or the sample alone.
const setLook = (home, filters, look) => {
  home.dataset.shows = look;
  for (const one of filters.querySelectorAll("button")) one.setAttribute("aria-pressed", String(one.dataset.look === look));
};
const offerLooks = (home, filters, samples) => {
  const has = (model) => samples.some((sample) => sample && (sample["heat_" + model] || sample["words_" + model]));
  filters.querySelector("[data-look=easy]").hidden = !has("easy");
  filters.querySelector("[data-look=debiased]").hidden = !has("debiased");
  filters.hidden = !has("easy") && !has("debiased");
  setLook(home, filters, has("easy") ? "easy" : has("debiased") ? "debiased" : "plain");
};
for (const filters of document.querySelectorAll(".looks")) {
  const home = filters.parentElement.id === "dialog-look" ? find("dialog-body") : find("look-list");
  filters.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) setLook(home, filters, button.dataset.look);
  });
  if (home.id === "look-list") offerLooks(home, filters, data.looks.map((place) => data.samples[place]));
}
draw("reading", (reading) => {
  const read = (event) => {
    const one = event.target.closest && event.target.closest(".gallery .sample");
    if (one) reading.textContent = describe(one.dataset.place);
  };
  document.addEventListener("focusin", read);
  document.addEventListener("pointerover", read);
});
for (const button of document.querySelectorAll(".snippet button")) {
  const code = button.parentElement.querySelector("code");
  button.hidden = false;
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      getSelection().selectAllChildren(code);
      document.execCommand("copy");
    }
    button.textContent = "Copied";
  });
}
