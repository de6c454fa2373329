// The newest data from the server, and the history that this page has seen.

// failureOutcomes are the outcomes that count as failures.
const failureOutcomes = ["failure", "panic", "parked", "terminal"];

function sum(counters, names) {
  let total = 0;
  for (const name of names || Object.keys(counters || {})) {
    total += (counters || {})[name] || 0;
  }
  return total;
}

function typeKey(t) {
  return [t.resource, t.version, t.group].join(".");
}

function typeName(t) {
  return t.group ? t.resource + "." + t.group : t.resource;
}

function newSeries() {
  return {rate: new Ring(), failures: new Ring(), total: null, failed: null};
}

// observe adds the rates since the last observation. A total that has decreased leaves a gap.
function observe(series, counters, seconds) {
  const total = sum(counters);
  const failed = sum(counters, failureOutcomes);
  const hasRate = series.total !== null && seconds > 0 && total >= series.total && failed >= series.failed;
  series.rate.push(hasRate ? (total - series.total) / seconds : NaN);
  series.failures.push(hasRate ? (failed - series.failed) / seconds : NaN);
  series.total = total;
  series.failed = failed;
}

class Model {
  constructor() {
    this.data = null;
    this.polls = 0;
    this.received = 0; // local time of the newest response
    this.time = 0; // time of the newest data, by the server's clock
    this.types = new Map(); // series by type
    this.all = newSeries();
    this.gauges = {};
    this.changes = []; // leadership changes, newest first
  }

  // add stores a document. The server can return the same document twice.
  add(data) {
    this.received = Date.now();
    this.polls++;
    const time = Date.parse(data.time);
    if (this.data && time === this.time) {
      return;
    }
    const restarted = this.data && this.data.started !== data.started;
    const seconds = this.data && !restarted ? (time - this.time) / 1000 : 0;
    this.noteLeadership(data);
    this.data = data;
    this.time = time;
    observe(this.all, data.summary.reconciles, seconds);
    const types = new Map();
    for (const t of data.types) {
      t.key = typeKey(t);
      t.series = this.types.get(t.key) || newSeries();
      observe(t.series, t.reconciles, seconds);
      types.set(t.key, t.series);
    }
    this.types = types;
    for (const p of data.parked.objects) {
      p.key = [typeKey(p), p.namespace || "", p.name].join("/");
    }
    this.addGauges(data);
    this.addReferences(data.blueprints);
  }

  addGauges(data) {
    const queue = data.summary.queue;
    const values = {
      types: data.types.length, blueprints: data.blueprints.length, objects: data.summary.objects,
      bytes: data.summary.bytes, queued: queue.live + queue.background + queue.delayed,
      failing: data.summary.failing + data.summary.parked,
    };
    for (const [name, value] of Object.entries(values)) {
      this.gauges[name] = this.gauges[name] || new Ring();
      this.gauges[name].push(value);
    }
  }

  // addReferences sets which Blueprints have a resource of another Blueprint's type.
  addReferences(blueprints) {
    const byKind = new Map();
    for (const b of blueprints) {
      b.uses = [];
      b.usedBy = [];
      b.resources = b.resources || [];
      if (b.type && b.type.kind) {
        byKind.set(b.type.group + "/" + b.type.kind, b);
      }
    }
    for (const b of blueprints) {
      for (const r of b.resources) {
        const group = r.apiVersion.includes("/") ? r.apiVersion.split("/")[0] : "";
        const used = byKind.get(group + "/" + r.kind);
        if (used && used !== b && !b.uses.includes(used)) {
          b.uses.push(used);
          used.usedBy.push(b);
        }
      }
    }
  }

  noteLeadership(data) {
    const now = data.leadership;
    const before = this.data && this.data.leadership;
    if (!before || ["leader", "leading", "term", "identity"].some((f) => before[f] !== now[f])) {
      const most = 20;
      this.changes.unshift({at: Date.parse(data.time), ...now});
      this.changes.length = Math.min(this.changes.length, most);
    }
  }

  // age returns the seconds since a time by the server's clock.
  age(time) {
    return (this.time + (Date.now() - this.received) - Date.parse(time)) / 1000;
  }
}

const model = new Model();
