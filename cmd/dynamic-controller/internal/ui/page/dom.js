// Functions that create elements. Data from the server is only ever set as text or as an attribute.

function byID(id) {
  return document.getElementById(id);
}

// el creates an element. Children are elements or text; null is ignored.
function el(tag, attributes, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "onclick") {
      e.addEventListener("click", value);
    } else if (value !== null && value !== undefined && value !== false) {
      e.setAttribute(name, value === true ? "" : value);
    }
  }
  e.append(...children.flat().filter((c) => c !== null && c !== undefined));
  return e;
}

function svgEl(tag, attributes, ...children) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    e.setAttribute(name, value);
  }
  e.append(...children);
  return e;
}

// setText changes the text only if it differs, so that selections in unchanged text are kept.
function setText(e, text) {
  if (e.textContent !== text) {
    e.textContent = text;
  }
}

function setAttribute(e, name, value) {
  if (e.getAttribute(name) !== value) {
    e.setAttribute(name, value);
  }
}

// tones maps the states of types and Blueprints to colors and symbols.
const tones = {
  Synced: "good", Served: "good", Syncing: "wait", Waiting: "wait", NotFound: "warn", Deleting: "warn",
  Forbidden: "bad", Failing: "bad", Rejected: "bad", Unknown: "bad", Stopped: "idle",
};

function toneOf(state) {
  return tones[state] || "idle";
}

function stateEl(state) {
  return el("span", {class: "state", "data-tone": toneOf(state)}, state);
}

// fields creates a list of names and values. Pairs without a value are left out.
function fields(pairs) {
  const list = el("dl", {class: "fields"});
  for (const [name, value] of pairs) {
    if (value !== null && value !== undefined && value !== "") {
      list.append(el("dt", null, name), el("dd", null, value));
    }
  }
  return list;
}

// plainTable creates a small table. Columns whose title begins with "#" contain numbers.
function plainTable(titles, rows) {
  const number = titles.map((title) => title.startsWith("#") ? "number" : null);
  return el("table", {class: "plain"},
    el("thead", null, el("tr", null, titles.map((t, i) => el("th", {class: number[i], scope: "col"}, t.replace("#", ""))))),
    el("tbody", null, rows.map((row) => el("tr", null, row.map((cell, i) => el("td", {class: number[i]}, cell))))));
}
