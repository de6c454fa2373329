// A table that creates elements only for the visible rows. Its rows are sorted, filtered and operated with the keyboard.

const rowHeight = 27;

class Table {
  // The options are id, label, columns, search (returns the text of a row that the filter searches), state (returns the
  // state of a row, for the buttons that filter by state), open (called with a row), sort, empty and changed.
  //
  // A column has id, title, width, value (by which rows are sorted), and update (sets the content of a cell) or text. It
  // can have hint, number and create (adds elements to a new cell, and returns its update function).
  constructor(options) {
    Object.assign(this, options);
    this.rows = [];
    this.visible = [];
    this.activeKey = null;
    this.states = new Set();
    this.filter = "";
    this.pool = [];
    this.build();
  }

  build() {
    this.input = el("input", {
      type: "search", placeholder: "Filter: words, or -word to exclude", "aria-label": "Filter " + this.label,
      spellcheck: "false", autocomplete: "off",
    });
    this.input.addEventListener("input", () => {
      this.filter = this.input.value;
      this.refresh(true);
    });
    this.chips = el("span", {role: "group", "aria-label": "Filter by state", class: "tools", "data-chips": ""});
    this.shown = el("span", {class: "shown", role: "status"});
    this.top = el("td", {colspan: this.columns.length});
    this.bottom = el("td", {colspan: this.columns.length});
    this.body = el("tbody", null, el("tr", {class: "gap", role: "presentation"}, this.top),
      el("tr", {class: "gap", role: "presentation"}, this.bottom));
    this.headers = this.columns.map((c) => el("th", {scope: "col", class: c.number ? "number" : null},
      el("button", {type: "button", title: c.hint, "data-column": c.id, onclick: () => this.toggleSort(c)}, c.title)));
    this.table = el("table", {
      role: "grid", "aria-label": this.label, tabindex: "0",
    },
    el("colgroup", null, this.columns.map(() => el("col"))),
    el("thead", null, el("tr", null, this.headers)), this.body);
    this.columns.forEach((c, i) => {
      this.table.querySelectorAll("col")[i].style.width = c.width ? c.width + "px" : "auto";
    });
    const fixed = this.columns.reduce((width, c) => width + (c.width || c.least || 160), 0);
    this.table.style.minWidth = fixed + "px";
    this.none = el("p", {class: "none", hidden: true});
    this.frame = el("div", {class: "frame"}, this.table, this.none);
    this.frame.addEventListener("scroll", () => this.draw(), {passive: true});
    new ResizeObserver(() => this.draw()).observe(this.frame);
    this.table.addEventListener("keydown", (event) => this.key(event));
    byID(this.id).append(el("div", {class: "tools"}, this.input, this.chips, this.shown), this.frame);
  }

  // setRows replaces the data.
  setRows(rows) {
    this.rows = rows;
    this.refresh(false);
  }

  toggleSort(column) {
    const [id, direction] = this.sort;
    const first = column.number ? -1 : 1;
    this.sort = [column.id, id === column.id ? -direction : first];
    this.refresh(true);
  }

  toggleState(state) {
    if (!this.states.delete(state)) {
      this.states.add(state);
    }
    this.refresh(true);
  }

  // refresh filters, sorts and draws the rows.
  refresh(isChange) {
    const accepts = newFilter(this.filter, this.search);
    const found = this.rows.filter(accepts);
    this.drawChips(found);
    this.visible = this.states.size ? found.filter((row) => this.states.has(this.state(row))) : found;
    const [id, direction] = this.sort;
    const column = this.columns.find((c) => c.id === id);
    this.visible = sorted(this.visible, column.value, direction);
    this.headers.forEach((th, i) => {
      if (this.columns[i] === column) {
        setAttribute(th, "aria-sort", direction > 0 ? "ascending" : "descending");
      } else {
        th.removeAttribute("aria-sort");
      }
    });
    setText(this.shown, this.visible.length === this.rows.length ? formatCount(this.rows.length) :
      formatCount(this.visible.length) + " of " + formatCount(this.rows.length));
    setAttribute(this.table, "aria-rowcount", String(this.visible.length + 1));
    this.none.hidden = this.visible.length > 0;
    setText(this.none, this.rows.length ? "Nothing matches the filter." : this.empty);
    if (isChange) {
      this.frame.scrollTop = 0;
      this.changed();
    }
    this.draw();
  }

  drawChips(found) {
    if (!this.state) {
      return;
    }
    const counts = new Map();
    for (const state of this.states) {
      counts.set(state, 0);
    }
    for (const row of found) {
      counts.set(this.state(row), (counts.get(this.state(row)) || 0) + 1);
    }
    const chips = [...counts].sort((a, b) => a[0] < b[0] ? -1 : 1).map(([state, n]) => [state, formatCount(n)]);
    const existing = new Map([...this.chips.children].map((c) => [c.dataset.state, c]));
    const wanted = chips.map(([state, n]) => {
      const chip = existing.get(state) || el("button", {
        type: "button", class: "chip", "data-state": state, onclick: () => this.toggleState(state),
      }, stateEl(state), el("span", {class: "dim"}));
      setText(chip.lastChild, " " + n);
      setAttribute(chip, "aria-pressed", String(this.states.has(state)));
      return chip;
    });
    if (wanted.length !== existing.size || wanted.some((c, i) => c !== this.chips.children[i])) {
      this.chips.replaceChildren(...wanted);
    }
  }

  // draw updates the elements of the visible rows.
  draw() {
    if (byID(this.id).hidden) {
      return;
    }
    const spare = 4;
    const first = Math.max(0, Math.min(Math.floor(this.frame.scrollTop / rowHeight) - spare, this.visible.length - 1));
    const count = Math.ceil(this.frame.clientHeight / rowHeight) + 2 * spare;
    const last = Math.min(this.visible.length, first + count);
    while (this.pool.length < last - first) {
      this.pool.push(this.newRow());
    }
    let active = "";
    for (let i = 0; i < this.pool.length; i++) {
      const {tr, update} = this.pool[i];
      const row = this.visible[first + i];
      tr.hidden = first + i >= last;
      if (tr.hidden) {
        continue;
      }
      tr.index = first + i;
      setAttribute(tr, "aria-rowindex", String(first + i + 2));
      const isActive = row.key === this.activeKey;
      setAttribute(tr, "class", isActive ? "row active" : "row");
      setAttribute(tr, "aria-selected", String(isActive));
      active = isActive ? tr.id : active;
      update(row);
    }
    setAttribute(this.table, "aria-activedescendant", active);
    this.top.style.height = first * rowHeight + "px";
    this.bottom.style.height = (this.visible.length - Math.max(first, last)) * rowHeight + "px";
  }

  newRow() {
    const tr = el("tr", {class: "row", id: this.id + "-row-" + this.pool.length});
    const updates = this.columns.map((c) => {
      const td = el("td", {class: c.number ? "number" : null});
      tr.append(td);
      return c.create ? c.create(td) : (row) => setCell(td, c, row);
    });
    tr.addEventListener("click", () => this.activate(tr.index, true));
    this.body.insertBefore(tr, this.body.lastChild);
    return {tr, update: (row) => updates.forEach((update) => update(row))};
  }

  activate(index, open) {
    const row = this.visible[index];
    if (!row) {
      return;
    }
    this.activeKey = row.key;
    if (open) {
      this.open(row);
    }
    const above = index * rowHeight;
    const room = this.frame.clientHeight - 31 - rowHeight;
    if (above < this.frame.scrollTop) {
      this.frame.scrollTop = above;
    } else if (above > this.frame.scrollTop + room) {
      this.frame.scrollTop = above - room;
    }
    this.draw();
  }

  key(event) {
    if (event.target !== this.table) {
      return;
    }
    const at = this.visible.findIndex((row) => row.key === this.activeKey);
    const page = Math.max(1, Math.floor(this.frame.clientHeight / rowHeight) - 2);
    const last = this.visible.length - 1;
    const to = {
      ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: last, Enter: at, " ": at,
    }[event.key];
    if (to === undefined) {
      return;
    }
    event.preventDefault();
    this.activate(Math.max(0, Math.min(last, to)), event.key === "Enter" || event.key === " " || isOpen());
  }
}

// setCell sets the text of a cell. The column decides whether the text is highlighted.
function setCell(td, column, row) {
  const text = column.text(row);
  setText(td, text);
  setAttribute(td, "title", column.number ? "" : text);
  if (column.number) {
    setAttribute(td, "class", "number" + (text === "0" ? " zero" : column.alert ? " alert" : ""));
  }
}

// newFilter returns a function that reports whether the text of a row contains all words, and no word with a minus.
function newFilter(text, search) {
  const words = text.toLowerCase().split(/\s+/).filter((word) => word !== "" && word !== "-");
  if (words.length === 0) {
    return () => true;
  }
  return (row) => {
    if (row.searched === undefined) {
      row.searched = search(row).toLowerCase();
    }
    return words.every((word) => word[0] === "-" ? !row.searched.includes(word.slice(1)) : row.searched.includes(word));
  };
}

// sorted returns the rows by the value. Rows with the same value keep their order, missing values are last.
function sorted(rows, value, direction) {
  const keyed = rows.map((row) => [value(row), row]);
  const isMissing = (v) => v === undefined || v === null || Number.isNaN(v);
  keyed.sort(([a], [b]) => {
    if (isMissing(a) || isMissing(b)) {
      return isMissing(a) - isMissing(b);
    }
    return a < b ? -direction : a > b ? direction : 0;
  });
  return keyed.map(([, row]) => row);
}
