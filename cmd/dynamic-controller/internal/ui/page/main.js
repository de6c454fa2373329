// The requests for data, the tabs and the address of the view.

const apiVersion = "status.platform.example.com/v1alpha1";
const views = ["types", "parked", "blueprints", "graph", "replica"];
let current = "types";
let problem = null; // why the last request has failed
let timer = 0;
let pending = null; // AbortController of the pending request

function drawAll() {
  if (!model.data) {
    return;
  }
  const {leadership, version, summary, types, parked, blueprints, mapper} = model.data;
  setText(byID("role"), leadership.leading ? "Leading, term " + leadership.term : "Standby");
  setText(byID("identity"), [leadership.identity, version].filter((s) => s).join(" \u00b7 "));
  document.title = (leadership.leading ? "Leader " : "Standby ") + leadership.identity + " - dynamic-controller";
  drawTiles();
  const count = (id, n, bad) => {
    const e = byID("tab-" + id).querySelector(".count");
    setText(e, n === null ? "" : formatCount(n));
    setAttribute(e, "class", bad ? "count bad" : "count");
  };
  count("types", types.length);
  count("parked", summary.parked, summary.parked > 0);
  count("blueprints", blueprints.length);
  count("graph", null);
  count("replica", mapper.errors.length || null, true);
  tables.types.setRows(types);
  tables.parked.setRows(parked.objects);
  for (const b of blueprints) {
    b.key = b.name;
  }
  tables.blueprints.setRows(blueprints);
  drawGraphView();
  drawReplica();
  drawDetails(false);
}

// drawConnection shows how old the data is, and why it is not newer. Screen readers read only the note, because the age
// changes every second.
function drawConnection() {
  let note = problem || "";
  let level = problem ? "bad" : "wait";
  if (model.data && !problem) {
    const {leadership, caches, mapper} = model.data;
    const isGood = leadership.leader && caches.synced && !mapper.errors.length;
    level = isGood ? "good" : "warn";
    note = notes(model.data).join("; ");
  }
  const age = formatDuration((Date.now() - model.received) / 1000);
  setText(byID("age"), model.data ? `Data from ${formatTime(model.received)}, ${age} ago.` :
    problem ? "No data." : "Waiting for the first data.");
  setText(byID("note"), note);
  setAttribute(byID("connection"), "title", note);
  setAttribute(byID("connection"), "data-level", level);
  document.body.classList.toggle("stale", problem !== null && model.data !== null);
}

// notes returns the caveats about the data.
function notes({leadership, caches, mapper, parked}) {
  const errors = mapper.errors.length;
  return [
    leadership.leading ? "" : leadership.leader ? `This is a standby replica, which has no queues; the leader is ${leadership.leader}` :
      "No replica leads",
    caches.synced ? "" : caches.message || "The caches are not complete",
    errors === 1 ? "The mapper has an error" : errors ? `The mapper has ${formatCount(errors)} errors` : "",
    current === "parked" && parked.total > parked.objects.length ?
      `The newest ${formatCount(parked.objects.length)} of ${formatCount(parked.total)} parked objects are listed` : "",
  ].filter((s) => s);
}

// problemOf describes a response without data.
function problemOf(status, body) {
  const known = {
    401: "The server does not accept the token (401): it may have expired.",
    403: "The user has no permission to read the data (403).",
  };
  const detail = body ? " The server returned: " + body.trim().slice(0, 300) : "";
  return (known[status] || `The server cannot return the data (${status}).`) + detail;
}

async function load() {
  const timeout = 15000;
  clearTimeout(timer);
  if (pending) {
    return;
  }
  pending = new AbortController();
  let data = null;
  const expire = setTimeout(() => pending.abort(), timeout);
  try {
    const response = await fetch("status", {signal: pending.signal, headers: {Accept: "application/json"}, cache: "no-store"});
    if (response.ok) {
      data = await response.json();
      problem = data.apiVersion === apiVersion ? null : "This version of the page cannot show the data.";
    } else {
      problem = problemOf(response.status, await response.text());
    }
  } catch (error) {
    problem = error instanceof SyntaxError ? "The response is not valid JSON." :
      error.name === "AbortError" ? `No response within ${timeout / 1000} s.` : "The server cannot be reached.";
  }
  clearTimeout(expire);
  pending = null;
  try {
    if (!problem) {
      model.add(data);
      drawAll();
    }
  } catch (error) {
    problem = "The page cannot show the data: " + error;
    console.error(error);
  } finally {
    schedule();
  }
  drawConnection();
}

function schedule() {
  clearTimeout(timer);
  const seconds = Number(byID("interval").value);
  if (seconds > 0 && !document.hidden) {
    timer = setTimeout(load, seconds * 1000);
  }
}

function show(view, focus) {
  current = view;
  for (const id of views) {
    const tab = byID("tab-" + id);
    byID(id).hidden = id !== view;
    setAttribute(tab, "aria-selected", String(id === view));
    setAttribute(tab, "tabindex", id === view ? "0" : "-1");
  }
  if (focus) {
    byID("tab-" + view).focus();
  }
  if (tables[view]) {
    tables[view].draw();
  }
  drawGraphView();
  drawConnection();
  saveView();
}

// saveView stores the view in the address, so that it can be reloaded and shared.
function saveView() {
  const parameters = new URLSearchParams();
  const table = tables[current];
  const filter = table ? table.filter : current === "graph" ? graphFilter.value : "";
  if (filter) {
    parameters.set("filter", filter);
  }
  if (table) {
    parameters.set("sort", (table.sort[1] < 0 ? "-" : "") + table.sort[0]);
    if (table.states.size) {
      parameters.set("states", [...table.states].join(","));
    }
  }
  if (opened) {
    parameters.set(opened.kind, opened.key);
  }
  history.replaceState(null, "", "#" + current + "?" + parameters);
}

function restoreView() {
  const [view, query] = location.hash.slice(1).split("?");
  const parameters = new URLSearchParams(query || "");
  const id = views.includes(view) ? view : "types";
  const table = tables[id];
  const filter = parameters.get("filter") || "";
  if (table) {
    table.filter = table.input.value = filter;
    const sort = parameters.get("sort") || "";
    const column = sort.replace(/^-/, "");
    if (table.columns.some((c) => c.id === column)) {
      table.sort = [column, sort[0] === "-" ? -1 : 1];
    }
    table.states = new Set((parameters.get("states") || "").split(",").filter((s) => s));
    table.refresh(false);
  } else {
    graphFilter.value = filter;
  }
  for (const kind of ["type", "parked", "blueprint"]) {
    if (parameters.get(kind)) {
      opened = {kind, key: parameters.get(kind)};
      markActive();
      drawDetails(true);
    }
  }
  show(id, false);
}

for (const id of views) {
  byID("tab-" + id).addEventListener("click", () => show(id, false));
}
document.querySelector("nav").addEventListener("keydown", (event) => {
  const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
  if (step) {
    show(views[(views.indexOf(current) + step + views.length) % views.length], true);
  }
});
document.addEventListener("keydown", (event) => {
  const isTyping = event.target.matches("input, select, textarea");
  if (event.key === "Escape" && !isTyping) {
    closeDetails();
  } else if (event.key === "/" && !isTyping) {
    const input = byID(current).querySelector("input");
    if (input) {
      event.preventDefault();
      input.focus();
    }
  }
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    clearTimeout(timer);
  } else if (Number(byID("interval").value) > 0) {
    load();
  }
});
window.addEventListener("hashchange", restoreView);
byID("interval").addEventListener("change", schedule);
byID("refresh").addEventListener("click", load);
byID("close").addEventListener("click", closeDetails);
setInterval(drawConnection, 1000);

restoreView();
load();
