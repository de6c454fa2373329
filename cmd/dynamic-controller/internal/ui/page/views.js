// The views: tables, summary, dependencies and replica.

// numberColumn returns a column of numbers. An alert highlights values above zero.
function numberColumn(id, title, width, value, hint, alert, format = formatCount) {
  return {id, title, width, value, hint, alert, number: true, text: (row) => format(value(row))};
}

function stateColumn(state) {
  return {
    id: "state", title: "State", width: 100, hint: "Problems first", value: (row) => stateOrder.indexOf(state(row)),
    create: (td) => {
      const span = stateEl("");
      td.append(span);
      return (row) => {
        setText(span, state(row));
        setAttribute(span, "data-tone", toneOf(state(row)));
      };
    },
  };
}

// stateOrder lists states, problems first.
const stateOrder = [
  "Failing", "Forbidden", "Rejected", "Unknown", "NotFound", "Stopped", "Deleting", "Waiting", "Syncing", "Synced", "Served",
];

// nameColumn returns a column with a name, and a less important part.
function nameColumn(id, title, name, rest, width) {
  return {
    id, title, width, value: (row) => name(row) + " " + rest(row),
    create: (td) => {
      const first = el("span", {class: "name"});
      const second = el("span", {class: "dim"});
      td.append(first, " ", second);
      return (row) => {
        setText(first, name(row));
        setText(second, rest(row));
        setAttribute(td, "title", name(row) + " " + rest(row));
      };
    },
  };
}

function sinceColumn(since) {
  return {
    id: "since", title: "Since", width: 70, number: true, hint: "Newest first", value: (row) => Date.parse(since(row)),
    text: (row) => formatDuration(model.age(since(row))),
  };
}

const rateColumn = {
  id: "rate", title: "Reconciles/s", width: 150, number: true, hint: "Reconciles per second, with a chart of the last 60 values",
  value: (t) => t.series.rate.last(),
  create: (td) => {
    const spark = newSpark(76, 17);
    const value = el("span");
    td.append(spark.svg, value);
    return (t) => {
      setText(value, formatRate(t.series.rate.last()));
      spark.draw(t.series.rate);
    };
  },
};

const tables = {
  types: new Table({
    id: "types", label: "Types", empty: "No types are served.", sort: ["state", 1], changed: saveView,
    state: (t) => t.state, open: (t) => openDetails("type", t.key),
    search: (t) => [t.resource, t.group, t.version, t.kind, t.blueprint, t.state, t.message].join(" "),
    columns: [
      stateColumn((t) => t.state), nameColumn("name", "Type", (t) => t.resource, (t) => t.group + "/" + t.version, 256),
      sinceColumn((t) => t.since),
      numberColumn("objects", "Objects", 76, (t) => t.objects, "Objects in the cache"),
      numberColumn("bytes", "Memory", 78, (t) => t.bytes, "Estimated memory of these objects", false, formatBytes),
      numberColumn("live", "Live", 54, (t) => t.queue.live, "Objects waiting because of events"),
      numberColumn("background", "Backgr.", 66, (t) => t.queue.background, "Objects waiting because of lists and resyncs"),
      numberColumn("delayed", "Delayed", 70, (t) => t.queue.delayed, "Objects waiting for a retry"),
      numberColumn("oldest", "Oldest", 62, (t) => t.queue.oldestSeconds, "How long the next object has waited", false,
        formatSeconds),
      numberColumn("running", "Running", 74, (t) => t.queue.running, "Running reconciles"),
      numberColumn("failing", "Failing", 64, (t) => t.failing, "Objects that are retried after a failure", true),
      numberColumn("parked", "Parked", 64, (t) => t.parked, "Objects that are not retried until they change", true),
      rateColumn,
      {id: "message", title: "Reason", least: 110, value: (t) => t.message || undefined, text: (t) => t.message || ""},
    ],
  }),
  parked: new Table({
    id: "parked", label: "Parked objects", empty: "No objects are parked.", sort: ["since", -1], changed: saveView,
    open: (p) => openDetails("parked", p.key),
    search: (p) => [p.namespace, p.name, p.resource, p.group, p.error].join(" "),
    columns: [
      sinceColumn((p) => p.since), nameColumn("name", "Object", objectName, () => "", 190),
      nameColumn("type", "Type", (p) => p.resource, (p) => p.group + "/" + p.version, 300),
      numberColumn("failures", "Failures", 84, (p) => p.failures, "Consecutive failures"),
      {id: "error", title: "Error", least: 400, value: (p) => p.error, text: (p) => p.error},
    ],
  }),
  blueprints: new Table({
    id: "blueprints", label: "Blueprints", empty: "There are no Blueprints.", sort: ["state", 1], changed: saveView,
    state: (b) => b.state, open: (b) => openDetails("blueprint", b.name),
    search: (b) => [b.name, b.type && typeName(b.type), b.type && b.type.kind, b.state, b.reason, b.message, b.revision].join(" "),
    columns: [
      stateColumn((b) => b.state), nameColumn("name", "Blueprint", (b) => b.name, () => "", 230),
      nameColumn("type", "Type", (b) => b.type ? b.type.resource : "", (b) => b.type ? b.type.group + "/" + b.type.version : "", 210),
      numberColumn("generation", "Generation", 92, (b) => b.generation, "The newest generation", false, String),
      numberColumn("served", "Served", 74, (b) => b.servedGeneration || 0, "The served generation", false, String),
      {id: "revision", title: "Revision", width: 190, value: (b) => b.revision, text: (b) => b.revision || ""},
      numberColumn("older", "Older", 66, (b) => (b.olderRevisions || []).length, "Older revisions that instances use"),
      {id: "rollout", title: "Updated", width: 96, number: true, hint: "Instances with the newest revision",
        value: (b) => b.rollout ? b.rollout.updated / (b.rollout.total || 1) : undefined,
        text: (b) => b.rollout ? formatCount(b.rollout.updated) + "/" + formatCount(b.rollout.total) : ""},
      numberColumn("resources", "Resources", 88, (b) => b.resources.length, "Resources in the spec"),
      {id: "reason", title: "Reason", least: 230, value: (b) => b.reason || undefined,
        text: (b) => [b.reason, b.message].filter((s) => s).join(": ")},
    ],
  }),
};

const tiles = newTiles([
  ["types", "Types"], ["blueprints", "Blueprints"], ["objects", "Objects"], ["bytes", "Cache memory"],
  ["queued", "Waiting"], ["rate", "Reconciles/s"], ["failing", "Failing and parked"],
]);

function newTiles(names) {
  return Object.fromEntries(names.map(([id, label]) => {
    const spark = newSpark(84, 26);
    const value = el("span", {class: "value"}, "\u2013");
    const note = el("div", {class: "note"});
    byID("tiles").append(el("div", {class: "tile", id: "tile-" + id}, el("div", {class: "label"}, label),
      el("div", {class: "row"}, value, spark.svg), note));
    return [id, (text, ring, noteText, isBad) => {
      setText(value, text);
      setText(note, noteText);
      setAttribute(note, "title", noteText);
      setAttribute(note, "class", isBad ? "note bad" : "note");
      spark.draw(ring);
    }];
  }));
}

// countsText lists the states that occur, problems first.
function countsText(counts) {
  return stateOrder.filter((s) => counts[s]).map((s) => formatCount(counts[s]) + " " + s).join(", ");
}

function drawTiles() {
  const {summary, types, blueprints} = model.data;
  const queue = summary.queue;
  const gauges = model.gauges;
  const failures = formatRate(model.all.failures.last());
  const isBad = (counts, states) => states.some((s) => counts[s]);
  tiles.types(formatCount(types.length), gauges.types, countsText(summary.types),
    isBad(summary.types, ["Failing", "Forbidden", "NotFound"]));
  tiles.blueprints(formatCount(blueprints.length), gauges.blueprints, countsText(summary.blueprints),
    isBad(summary.blueprints, ["Rejected", "Unknown"]));
  tiles.objects(formatCount(summary.objects), gauges.objects, "in all caches");
  tiles.bytes(formatBytes(summary.bytes), gauges.bytes, "estimated");
  tiles.queued(formatCount(queue.live + queue.background + queue.delayed), gauges.queued,
    `${formatCount(queue.live)} live, ${formatCount(queue.background)} backgr., ${formatCount(queue.delayed)} delayed`);
  byID("tile-rate").dataset.polls = model.polls;
  tiles.rate(formatRate(model.all.rate.last()) || "\u2013", model.all.rate,
    `${formatCount(queue.running)} running` + (failures ? `, ${failures}/s fail` : ""));
  tiles.failing(formatCount(summary.failing + summary.parked), gauges.failing,
    `${formatCount(summary.failing)} failing, ${formatCount(summary.parked)} parked`, summary.parked > 0);
}

const graphFilter = el("input", {
  type: "search", placeholder: "Filter: words, or -word to exclude", "aria-label": "Filter Blueprints", spellcheck: "false",
  autocomplete: "off",
});
const graphNote = el("span", {class: "shown", role: "status"});
const graphFrame = el("div", {class: "frame drawing"});
graphFilter.addEventListener("input", () => {
  drawGraphView();
  saveView();
});
byID("graph").append(el("div", {class: "tools"}, graphFilter,
  el("span", {class: "dim"}, "An arrow points from a Blueprint to one that has a resource of its type."), graphNote), graphFrame);

// connected returns the Blueprints that are connected to those that the filter accepts.
function connected(blueprints, accepts) {
  const found = new Set(blueprints.filter((b) => (b.uses.length || b.usedBy.length) && accepts(b)));
  for (const b of found) { // also visits Blueprints that are added in the loop
    b.uses.forEach((other) => found.add(other));
    b.usedBy.forEach((other) => found.add(other));
  }
  return [...found];
}

function drawGraphView() {
  if (!model.data || byID("graph").hidden) {
    return;
  }
  const most = 200;
  const all = connected(model.data.blueprints, newFilter(graphFilter.value, tables.blueprints.search));
  const shown = all.slice(0, most);
  const active = opened && opened.kind === "blueprint" ? opened.key : null;
  const nodes = new Map(shown.map((b) => [b, {
    id: b.name, title: b.name, second: b.state + (b.type && b.type.kind ? " \u00b7 " + b.type.kind : ""), needs: [],
    tone: toneOf(b.state), active: b.name === active, open: () => {
      openDetails("blueprint", b.name);
      drawGraphView();
    },
  }]));
  for (const [b, node] of nodes) {
    node.needs = b.uses.map((other) => nodes.get(other)).filter((n) => n);
  }
  const alone = model.data.blueprints.filter((b) => !b.uses.length && !b.usedBy.length).length;
  setText(graphNote, `${formatCount(shown.length)} of ${formatCount(all.length)} connected Blueprints` +
    (all.length > most ? ": use the filter to see others" : "") + `; ${formatCount(alone)} without dependencies`);
  const fresh = nodes.size ? drawGraph([...nodes.values()], "Dependencies of Blueprints", large) :
    el("p", {class: "none"}, "No Blueprint has a resource of another Blueprint's type. The details of a Blueprint show its own resources.");
  const before = graphFrame.firstChild;
  if (!before || !before.isEqualNode(fresh)) {
    const focused = graphFrame.contains(document.activeElement) ? document.activeElement.dataset.id : null;
    graphFrame.replaceChildren(fresh);
    const again = [...fresh.querySelectorAll("g.node")].find((g) => g.dataset.id === focused);
    if (again) {
      again.focus();
    }
  }
}

const replicaFrame = el("div", {class: "frame", tabindex: "0", "aria-label": "Replica"});
byID("replica").append(replicaFrame);

function drawReplica() {
  const {leadership, caches, mapper, version, started, summary} = model.data;
  const fresh = el("div", {class: "columns"},
    el("div", null,
      el("h3", null, "Leadership"),
      fields([
        ["This replica", leadership.identity], ["Leading", leadership.leading ? "yes" : "no"],
        ["Term", leadership.term ? String(leadership.term) : "none yet"], ["Leader", leadership.leader || "none"],
      ]),
      el("h3", null, "Changes since this page was opened"),
      plainTable(["Time", "Leader", "Term of this replica"], model.changes.map((c) => [formatDate(c.at), c.leader || "none",
        c.term ? c.term + (c.leading ? ", leading" : ", not leading") : "none yet"])),
      el("h3", null, "Process"),
      fields([["Version", version], ["Started", sinceText(started)],
        ["Caches", caches.synced ? "complete" : caches.message || "not complete"]]),
      el("h3", null, "Reconciles since the start"),
      outcomeTable(summary.reconciles)),
    el("div", null,
      el("h3", null, "Mapper"),
      fields([["Kinds", formatCount(mapper.kinds)], ["Complete", mapper.synced ? "yes" : "no"],
        ["Errors", formatCount(mapper.errors.length)]]),
      mapper.errors.map((e) => [
        el("h3", null, e.source + (e.groupVersion ? " " + e.groupVersion : "")),
        el("p", {class: "dim"}, "since " + sinceText(e.since)), message(e.error)]).flat()));
  const before = replicaFrame.firstChild;
  if (!before) {
    replicaFrame.append(fresh);
  } else if (!before.isEqualNode(fresh)) {
    before.replaceWith(fresh);
  }
}
