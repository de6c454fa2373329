// The panel with the details of a type, a parked object or a Blueprint.

let opened = null; // {kind, key}
let openedFrom = null; // the element that had the focus

function isOpen() {
  return opened !== null;
}

function openDetails(kind, key) {
  if (!opened) {
    openedFrom = document.activeElement;
  }
  opened = {kind, key};
  markActive();
  drawDetails(true);
  saveView();
}

// markActive highlights the row whose details are shown.
function markActive() {
  const table = tables[{type: "types", parked: "parked", blueprint: "blueprints"}[opened.kind]];
  table.activeKey = opened.key;
  table.draw();
}

function closeDetails() {
  if (!opened) {
    return;
  }
  const hadFocus = byID("details").contains(document.activeElement);
  opened = null;
  byID("details").hidden = true;
  if (hadFocus && openedFrom && openedFrom.isConnected) {
    openedFrom.focus();
  }
  saveView();
  drawGraphView();
}

// drawDetails replaces the content of the panel, unless it is unchanged or the user has selected text in it.
function drawDetails(isNew) {
  if (!opened || !model.data) {
    return;
  }
  const content = byID("content");
  const selection = window.getSelection();
  if (!isNew && selection && !selection.isCollapsed && content.contains(selection.anchorNode)) {
    return;
  }
  const drawers = {type: typeDetails, parked: parkedDetails, blueprint: blueprintDetails};
  const fresh = el("div", {id: "content"}, drawers[opened.kind](opened.key) || [
    el("h2", null, opened.key), el("p", {class: "dim"}, "The newest data no longer contains it."),
  ]);
  if (!fresh.isEqualNode(content)) {
    const focused = content.contains(document.activeElement) ? document.activeElement.textContent : null;
    content.replaceWith(fresh);
    if (focused !== null) {
      const again = [...fresh.querySelectorAll("button")].find((b) => b.textContent === focused);
      (again || byID("close")).focus();
    }
  }
  byID("details").hidden = false;
  if (isNew) {
    byID("details").scrollTop = 0;
  }
}

function link(text, kind, key) {
  return el("button", {type: "button", class: "link", onclick: () => openDetails(kind, key)}, text);
}

// sinceText returns a time and its age.
function sinceText(time) {
  return time ? formatDate(Date.parse(time)) + " (" + formatDuration(model.age(time)) + ")" : "";
}

function message(text) {
  return text ? el("div", {class: "message"}, text) : null;
}

function typeDetails(key) {
  const t = model.data.types.find((candidate) => candidate.key === key);
  if (!t) {
    return null;
  }
  const rate = newSpark(400, 48);
  rate.draw(t.series.rate);
  const parked = model.data.parked.objects.filter((p) => typeKey(p) === key);
  return [
    el("h2", null, typeName(t)),
    el("p", null, stateEl(t.state), " ", el("span", {class: "dim"}, t.replacing ? "a new watch is " + t.replacing : "")),
    message(t.message),
    fields([
      ["Kind", t.kind], ["Version", t.version], ["Blueprint", t.blueprint && link(t.blueprint, "blueprint", t.blueprint)],
      ["State since", sinceText(t.since)], ["Complete list", t.synced ? "yes" : "no"],
      ["Objects", formatCount(t.objects) + ", " + formatBytes(t.bytes)],
      ["Queue", `${formatCount(t.queue.live)} live, ${formatCount(t.queue.background)} background, ` +
        `${formatCount(t.queue.delayed)} delayed`],
      ["Longest wait", formatSeconds(t.queue.oldestSeconds)], ["Running", formatCount(t.queue.running)],
      ["Failing", formatCount(t.failing)], ["Parked", formatCount(t.parked)], ["Secondary watches", formatCount(t.watches)],
      ["Mean duration", meanDuration(t)],
    ]),
    el("h3", null, "Reconciles per second: " + (formatRate(t.series.rate.last()) || "not known yet")),
    rate.svg,
    outcomeTable(t.reconciles),
    (t.failingWatches || []).map((w) => [
      el("h3", null, "Watch of " + w.resource), el("p", null, stateEl(w.state), " ", el("span", {class: "dim"},
        "since " + sinceText(w.since))), message(w.message)]).flat(),
    parked.length ? el("h3", null, "Newest parked objects") : null,
    parked.map((p) => [el("p", null, link(objectName(p), "parked", p.key)), message(p.error)]).flat(),
  ].flat();
}

function meanDuration(t) {
  const total = sum(t.reconciles);
  return total ? (t.secondsTotal / total * 1000).toFixed(1) + " ms" : "";
}

function outcomeTable(counters) {
  const rows = Object.entries(counters || {}).filter(([, n]) => n > 0).sort((a, b) => b[1] - a[1]);
  return rows.length ? plainTable(["Outcome", "#Reconciles"], rows.map(([name, n]) => [name, formatCount(n)])) : null;
}

function objectName(p) {
  return p.namespace ? p.namespace + "/" + p.name : p.name;
}

function parkedDetails(key) {
  const p = model.data.parked.objects.find((candidate) => candidate.key === key);
  return p && [
    el("h2", null, objectName(p)),
    fields([
      ["Type", link(typeName(p), "type", typeKey(p))], ["Parked", sinceText(p.since)],
      ["Failures", formatCount(p.failures) + " in a row"],
    ]),
    el("h3", null, "Last error"),
    message(p.error),
    el("p", {class: "dim"}, "A parked object is not reconciled until it changes."),
  ];
}

function blueprintDetails(key) {
  const b = model.data.blueprints.find((candidate) => candidate.name === key);
  if (!b) {
    return null;
  }
  const names = (list) => list.length ? list.map((other) => [link(other.name, "blueprint", other.name), el("br")]).flat() : "";
  const type = model.data.types.find((t) => t.blueprint === b.name);
  return [
    el("h2", null, b.name),
    el("p", null, stateEl(b.state), b.reason ? " " + b.reason : ""),
    message(b.message),
    fields([
      ["Type", type ? link(typeName(type), "type", type.key) : b.type && typeName(b.type)],
      ["Kind", b.type && b.type.kind], ["Version", b.type && b.type.version],
      ["Generation", String(b.generation)], ["Served generation", b.servedGeneration ? String(b.servedGeneration) : "none"],
      ["Revision", b.revision], ["Older revisions", (b.olderRevisions || []).join(", ")],
      ["Rollout", rolloutText(b.rollout)], ["Uses", wrapped(names(b.uses))], ["Used by", wrapped(names(b.usedBy))],
    ]),
    b.resources.length ? el("h3", null, "Resources, in the order in which they become ready") : null,
    b.resources.length ? el("div", {class: "resources"}, resourceGraph(b)) : null,
    b.resources.length ? plainTable(["ID", "Kind", "Needs"], b.resources.map((r) => [
      r.id, r.kind + (r.external ? " (existing)" : "") + (r.collection ? " (several)" : ""), (r.needs || []).join(", ")])) : null,
  ];
}

function wrapped(content) {
  return content === "" ? "" : el("div", null, content);
}

function rolloutText(rollout) {
  if (!rollout) {
    return "";
  }
  const state = rollout.stopped ? ", stopped" : rollout.stalled ? ", stalled" : "";
  return `${formatCount(rollout.updated)} of ${formatCount(rollout.total)} instances updated${state}`;
}

function resourceGraph(b) {
  const nodes = new Map(b.resources.map((r) => [r.id, {
    id: r.id, title: r.id, second: r.kind + (r.collection ? " \u00d7n" : ""), external: r.external, needs: [],
  }]));
  for (const r of b.resources) {
    nodes.get(r.id).needs = (r.needs || []).map((id) => nodes.get(id)).filter((n) => n);
  }
  return drawGraph([...nodes.values()], "Resources of " + b.name, small);
}
