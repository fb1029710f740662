// The pages' one script: charts from the JSON that each page carries, the trials' table,
// the theme, and watching studies that run. No page needs it to show its tables of facts.
"use strict";

const root = document.documentElement;
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const json = (id) => JSON.parse(document.getElementById(id).textContent);
const FRONT = 0, DOMINATED = 1, INFEASIBLE = 2;
const STATUS = ["front", "dominated", "infeasible"];
const PAGE = 25, MOST_POINTS = 2500, MOST_CHOSEN = 6;
const redraws = [];  // what to draw again when the colours change

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

// ---- numbers and architectures as text (tadnn.report.text says how they read)

function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  for (const [scale, suffix] of [[1e12, " T"], [1e9, " G"], [1e6, " M"], [1e4, " k"]]) {
    if (size >= scale) return `${digits(value / (suffix === " k" ? 1e3 : scale))}${suffix}`;
  }
  return digits(value);
}

function digits(value) {
  if (Number.isInteger(value)) return String(value);
  const size = Math.abs(value);
  return size >= 100 ? value.toFixed(1) : size >= 1 ? value.toFixed(2)
    : size >= 0.01 ? value.toFixed(4) : value.toExponential(2);
}

// A value with its deviation, to the decimals that give the value three digits.
function pair(value, deviation) {
  const size = Math.abs(value);
  if (size >= 1e4 || !deviation) return number(value) + (deviation ? ` ± ${number(deviation)}` : "");
  const decimals = size >= 99.95 ? 0 : size >= 9.995 ? 1 : size >= 0.9995 ? 2 : size >= 0.00995 ? 3 : 4;
  return `${value.toFixed(decimals)} ± ${deviation.toFixed(decimals)}`;
}

function archText(arch) {
  const groups = new Map();
  for (const [name, value] of arch) {
    const stem = (/^(.*?[a-z])_?\d+(_\d+)*$/i.exec(name) || [null, name])[1];
    if (!groups.has(stem)) groups.set(stem, []);
    groups.get(stem).push(value);
  }
  return [...groups].map(([stem, values]) => {
    const distinct = [...new Set(values)];
    if (distinct.length === 1) return `${stem} ${distinct[0]}`;
    if (values.length <= 6) return `${stem} ${values.join("-")}`;
    distinct.sort((a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a) < String(b) ? -1 : 1));
    return distinct.length <= 6 ? `${stem} ${distinct.join("/")}` : `${stem} ${distinct[0]}…${distinct.at(-1)}`;
  }).join(", ");
}

// ---- charts

const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();

function layout(extra = {}) {
  const axis = {
    gridcolor: colour("grid"), linecolor: colour("line"), zeroline: false, automargin: true,
    ticks: "outside", tickcolor: colour("line"), title: {standoff: 8},
  };
  const { xaxis = {}, yaxis = {}, ...rest } = extra;
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: {family: getComputedStyle(document.body).fontFamily, size: 12.5, color: colour("ink")},
    margin: {l: 60, r: 16, t: 12, b: 48}, hovermode: "closest",
    hoverlabel: {bgcolor: colour("raised"), bordercolor: colour("line"), font: {color: colour("ink"), size: 12}, align: "left"},
    legend: {orientation: "h", y: 1.02, yanchor: "bottom", x: 0},
    xaxis: {...axis, ...xaxis}, yaxis: {...axis, ...yaxis}, ...rest,
  };
}

const CONFIG = {
  responsive: true, displaylogo: false,
  modeBarButtonsToRemove: ["lasso2d", "autoScale2d", "toImage"],
};

function draw(place, traces, shape) {
  return Plotly.react(place, traces, layout(shape), CONFIG);
}

function chart(place, make) {
  const again = () => { const made = make(); draw(place, made.traces, made.layout); };
  redraws.push(again);
  again();
}

const bars = (values, shown = true) => (
  {type: "data", array: values, visible: shown, thickness: 1, width: 3, color: colour("dim")}
);

function history(place) {
  const source = place.dataset.source;
  chart(place, () => {
    const { trials, volumes } = json(source).history;
    return {
      traces: [{x: trials, y: volumes, type: "scatter", mode: "lines", line: {color: colour("predicted"), width: 2, shape: "hv"}, hovertemplate: "%{x} trials: %{y:.1%}<extra></extra>"}],
      layout: {xaxis: {title: {text: "Trials"}, rangemode: "tozero"}, yaxis: {title: {text: "Share of the last hypervolume"}, tickformat: ".0%", range: [0, 1.05]}},
    };
  });
}

function identity(low, high) {
  return {x: [low, high], y: [low, high], mode: "lines", line: {color: colour("quiet"), width: 1}, name: "equal", hoverinfo: "skip"};
}

function pairs(place) {
  const view = json(place.dataset.source), found = view.pairs.pairs;
  chart(place, () => {
    const every = found.flatMap((p) => [p.predicted_ms, p.measured_ms]);
    const own = found.findIndex((p) => p.name === `#${view.trial}`);
    return {
      traces: [identity(0.9 * Math.min(...every), 1.1 * Math.max(...every)), {
        x: found.map((p) => p.measured_ms), y: found.map((p) => p.predicted_ms), text: found.map((p) => p.name),
        error_x: bars(found.map((p) => p.spread_ms)), error_y: bars(found.map((p) => p.std_ms)), mode: "markers", name: "networks",
        marker: {size: 8, color: found.map((_, i) => colour(i === own ? "measured" : "predicted"))},
        hovertemplate: "%{text}: %{x:.4g} ms measured, %{y:.4g} ms predicted<extra></extra>",
      }],
      layout: {showlegend: false, xaxis: {title: {text: "Measured latency (ms)"}}, yaxis: {title: {text: "Predicted latency (ms)"}}},
    };
  });
}

function curve(place) {
  const epochs = json(place.dataset.source).curve;
  chart(place, () => ({
    traces: [{x: epochs.map((e) => e.epoch), y: epochs.map((e) => e.accuracy), mode: "lines+markers", line: {color: colour("predicted")}, hovertemplate: "epoch %{x}: %{y:.4f}<extra></extra>"}],
    layout: {xaxis: {title: {text: "Epoch"}, dtick: Math.max(1, Math.ceil(epochs.length / 12))}, yaxis: {title: {text: "Validation accuracy"}}},
  }));
}

const PALETTE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8a6d3b", "#7a5195", "#9aa0a6"];
const MARKS = ["circle", "diamond", "square", "triangle-up", "cross", "x", "star", "pentagon", "hexagon"];

function kernels(place) {
  const rows = json(place.dataset.source).pairs;
  chart(place, () => {
    const ops = [...new Set(rows.map((r) => r.op))];
    const every = rows.flatMap((r) => [r.measured_us, r.predicted_us]);
    const traces = ops.map((op, i) => {
      const own = rows.filter((r) => r.op === op);
      return {
        x: own.map((r) => r.measured_us), y: own.map((r) => r.predicted_us), text: own.map((r) => r.label), name: op, mode: "markers",
        marker: {size: 5, opacity: 0.75, color: PALETTE[i % 9], symbol: MARKS[i % 9]},
        hovertemplate: "%{text}<br>%{x:.4g} µs measured, %{y:.4g} µs predicted<extra></extra>",
      };
    });
    return {
      traces: [identity(0.9 * Math.min(...every), 1.1 * Math.max(...every)), ...traces],
      layout: {xaxis: {type: "log", title: {text: "Measured (µs)"}, dtick: 1}, yaxis: {type: "log", title: {text: "Predicted (µs)"}, dtick: 1}},
    };
  });
}

function stairs(section) {
  const groups = json(section.dataset.stairs).groups, place = section.querySelector("[data-stair]");
  let at = groups.findIndex((g) => g.stair);
  if (at < 0) { place.remove(); return; }
  const show = () => {
    const {stair, name} = groups[at];
    const low = stair.latency_us.map((v, i) => v - stair.std_us[i]), high = stair.latency_us.map((v, i) => v + stair.std_us[i]);
    const of = (width) => stair.latency_us[stair.widths.indexOf(width)];
    const band = {x: stair.widths, mode: "lines", line: {width: 0, shape: "hvh"}, hoverinfo: "skip", showlegend: false};
    const text = "%{x}: %{y:.4g} µs<extra></extra>";
    draw(place, [
      {...band, y: low}, {...band, y: high, fill: "tonexty", fillcolor: colour("grid")},
      {x: stair.widths, y: stair.latency_us, mode: "lines", name: "predicted", line: {color: colour("predicted"), width: 2, shape: "hvh"}, hovertemplate: text},
      {x: stair.efficient, y: stair.efficient.map(of), mode: "markers", name: "efficient", marker: {size: 7, color: colour("paper"), line: {width: 1.5, color: colour("predicted")}}, hovertemplate: `efficient, ${text}`},
      {x: [stair.present], y: [of(stair.present)], mode: "markers", name: "this network", marker: {size: 10, symbol: "diamond", color: colour("measured")}, hovertemplate: `this network, ${text}`},
    ], {title: {text: name, font: {size: 13}, x: 0.01, xanchor: "left"}, margin: {l: 60, r: 16, t: 36, b: 48}, showlegend: false,
        xaxis: {title: {text: stair.axis}}, yaxis: {title: {text: "Predicted latency (µs)"}, rangemode: "tozero"}});
    all("[data-group]", section).forEach((b) => b.setAttribute("aria-pressed", String(Number(b.dataset.group) === at)));
  };
  all("[data-group]", section).forEach((button) => button.addEventListener("click", () => { at = Number(button.dataset.group); show(); }));
  redraws.push(show);
  show();
}

// ---- the explorer: plot, table and comparison of one study's trials

class Explorer {
  constructor(section) {
    this.section = section;
    this.plot = section.querySelector("[data-front]");
    this.table = section.querySelector("[data-table]");
    this.chosen = new Set();   // trial numbers
    this.boxed = null;         // rows inside the box, or null
    this.sort = {key: "status", down: false};
    this.page = 0;
    this.read();
    this.state = {x: this.defaultAxis(0), y: this.defaultAxis(1), logx: false, logy: false};
    this.state.logx = this.spans(this.state.x);
    this.build();
    redraws.push(() => this.drawPlot());
    this.drawAll();
  }

  read() {
    this.data = json(this.section.dataset.explorer);
    // What was measured is a column of its own: to sort by, and to put on an axis.
    for (const column of this.data.columns.filter((c) => Object.keys(c.measured).length)) {
      const of = (i) => this.data.trials.map((t) => (column.measured[t] || [null, null])[i]);
      this.data.columns.splice(this.data.columns.indexOf(column) + 1, 0, {
        key: `measured.${column.key}`, label: "Measured latency", unit: column.unit, title: `Measured latency (${column.unit})`,
        better: "", values: of(0), errors: of(1), measured: {},
      });
    }
    this.columns = new Map(this.data.columns.map((c) => [c.key, c]));
    this.outside = new Set(this.data.out_of_range);
    this.texts = new Map();
    this.rowOf = new Map(this.data.trials.map((trial, row) => [trial, row]));
  }

  defaultAxis(i) {
    const goals = this.data.objectives;
    if (i === 0) return goals.includes("latency") ? "latency" : goals[0];
    return goals.find((g) => g !== this.defaultAxis(0)) || "trial";
  }

  spans(key) {  // latencies over more than a factor of five read better on a logarithmic axis
    const values = this.columns.get(key).values.filter((v) => v !== null);
    const low = values.reduce((a, b) => Math.min(a, b), Infinity), high = values.reduce((a, b) => Math.max(a, b), -Infinity);
    return low > 0 && high > 5 * low;
  }

  arch(row) {
    const found = [];
    for (const [name, {values, index}] of Object.entries(this.data.choices)) if (index[row] >= 0) found.push([name, values[index[row]]]);
    return found;
  }

  text(row) {
    if (!this.texts.has(row)) this.texts.set(row, archText(this.arch(row)));
    return this.texts.get(row);
  }

  link(trial) {
    const inReport = document.querySelector(`[data-network="${trial}"]`);
    if (inReport) return `#trial-${trial}`;
    return document.querySelector("[data-network], [data-standalone]") || location.protocol === "file:" ? null : `/studies/${this.section.dataset.key}/trials/${trial}`;
  }

  build() {
    for (const which of ["x", "y"]) {
      const select = this.section.querySelector(`[data-axis="${which}"]`);
      select.replaceChildren(...this.data.columns.map((c) => element("option", {value: c.key}, c.label + (c.unit ? ` (${c.unit})` : ""))));
      select.value = this.state[which];
      const log = this.section.querySelector(`[data-log="${which}"]`);
      log.checked = this.state[`log${which}`];
      select.addEventListener("change", () => { this.state[which] = select.value; this.boxed = null; this.drawAll(); });
      log.addEventListener("change", () => { this.state[`log${which}`] = log.checked; this.drawPlot(); });
    }
    all("[data-show]", this.section).forEach((box) => box.addEventListener("change", () => this.drawPlot()));
    const filter = this.section.querySelector("[data-filter]"), only = this.section.querySelector("[data-front-only]");
    filter.addEventListener("input", () => { this.page = 0; this.drawTable(); });
    only.addEventListener("change", () => { this.page = 0; this.drawTable(); });
  }

  shows(what) { return this.section.querySelector(`[data-show="${what}"]`).checked; }

  drawAll() { this.drawPlot(); this.drawTable(); this.drawChosen(); }

  // Of points that would cover each other one stays: no more is drawn than can be seen.
  thinned(rows, x, y) {
    if (rows.length <= MOST_POINTS) return rows;
    const scale = (values, log) => {
      const use = log ? (v) => Math.log(v) : (v) => v;
      let low = Infinity, high = -Infinity;
      for (const r of rows) { const v = use(values[r]); if (Number.isFinite(v)) { low = Math.min(low, v); high = Math.max(high, v); } }
      return (v) => Math.floor(((use(v) - low) / (high - low || 1)) * this.cells);
    };
    for (this.cells = 160; ; this.cells = Math.floor(this.cells * 0.8)) {
      const fx = scale(x, this.state.logx), fy = scale(y, this.state.logy), seen = new Set();
      const kept = rows.filter((r) => { const key = fx(x[r]) * 1000 + fy(y[r]); return !seen.has(key) && seen.add(key); });
      if (kept.length <= MOST_POINTS) return kept;
    }
  }

  drawPlot() {
    const {data, state} = this, X = this.columns.get(state.x), Y = this.columns.get(state.y);
    const usable = (r) => X.values[r] !== null && Y.values[r] !== null && !(state.logx && X.values[r] <= 0) && !(state.logy && Y.values[r] <= 0);
    const rowsOf = (status) => data.status.map((s, r) => (s === status && usable(r) ? r : -1)).filter((r) => r >= 0);
    const hover = (r) => `<b>#${data.trials[r]}</b> ${STATUS[data.status[r]]}${data.trials[r] === data.knee ? ", the knee" : ""}<br>` +
      [X, Y].map((c) => `${c.label} ${pair(c.values[r], c.errors && c.errors[r])} ${c.unit}`).join("<br>") +
      (this.outside.has(r) ? "<br>outside of the latency model's range" : "") + `<br>${wrap(this.text(r))}`;
    const points = (rows, name, marker, extra = {}) => ({
      type: "scatter", mode: "markers", name, x: rows.map((r) => X.values[r]), y: rows.map((r) => Y.values[r]),
      customdata: rows.map((r) => data.trials[r]), text: rows.map(hover), hovertemplate: "%{text}<extra></extra>", marker,
      // Plotly dims what a box leaves out by itself; ours is dim enough.
      unselected: {marker: {opacity: 0.35}}, ...extra,
    });
    const error = (column, rows) => (column.errors && this.shows("errors") ? {...bars(rows.map((r) => column.errors[r])), color: colour("predicted")} : undefined);
    const traces = [];
    for (const [status, symbol, size] of [[INFEASIBLE, "x-thin-open", 6], [DOMINATED, "circle", 5]]) {
      const rows = rowsOf(status);
      if (!this.shows(status) || !rows.length) continue;
      const kept = this.thinned(rows, X.values, Y.values);
      const name = `${STATUS[status]} (${kept.length < rows.length ? `${kept.length} of ` : ""}${rows.length})`;
      traces.push(points(kept, name, {size, symbol, color: colour("dim"), opacity: 0.75}));
    }
    const front = rowsOf(FRONT).sort((a, b) => X.values[a] - X.values[b]);
    const two = data.objectives.length === 2 && data.objectives.includes(state.x) && data.objectives.includes(state.y) && state.x !== state.y;
    if (two && front.length > 1) {
      traces.push({x: front.map((r) => X.values[r]), y: front.map((r) => Y.values[r]), mode: "lines", line: {shape: X.better === "min" ? "hv" : "vh", color: colour("predicted"), width: 1.2}, hoverinfo: "skip", showlegend: false, opacity: 0.7});
    }
    traces.push(points(front, `front (${front.length})`, {size: 8, color: colour("predicted")}, {error_x: error(X, front), error_y: error(Y, front)}));
    this.addMeasured(traces, X, Y, usable);
    const rings = [...this.chosen].map((t) => this.rowOf.get(t)).filter((r) => r !== undefined && usable(r));
    traces.push(ring(rings, X, Y, "chosen", colour("chosen"), 17, 2));
    const knee = this.rowOf.get(data.knee);
    if (knee !== undefined && usable(knee)) traces.push(ring([knee], X, Y, "knee", colour("quiet"), 13, 1.3));
    const axis = (column, log) => ({title: {text: column.title}, type: log ? "log" : "linear", autorange: true});
    draw(this.plot, traces, {dragmode: "select", xaxis: axis(X, state.logx), yaxis: axis(Y, state.logy)});
    if (!this.listens) this.listen();
  }

  addMeasured(traces, X, Y, usable) {
    for (const [column, other, onX] of [[X, Y, true], [Y, X, false]]) {
      const rows = Object.keys(column.measured).map((t) => this.rowOf.get(Number(t))).filter((r) => r !== undefined && usable(r));
      if (!rows.length || column === other) continue;
      const at = (r) => column.measured[this.data.trials[r]];
      const joined = rows.flatMap((r) => [[column.values[r], other.values[r]], [at(r)[0], other.values[r]], [null, null]]);
      const place = (along, across) => (onX ? {x: along, y: across} : {x: across, y: along});
      traces.push({...place(joined.map((p) => p[0]), joined.map((p) => p[1])), mode: "lines", line: {color: colour("dim"), width: 1}, hoverinfo: "skip", showlegend: false});
      traces.push({
        ...place(rows.map((r) => at(r)[0]), rows.map((r) => other.values[r])), mode: "markers", name: `measured (${rows.length})`,
        customdata: rows.map((r) => this.data.trials[r]), marker: {size: 8, symbol: "diamond", color: colour("measured")},
        [onX ? "error_x" : "error_y"]: this.shows("errors") ? {...bars(rows.map((r) => at(r)[1])), color: colour("measured")} : undefined,
        text: rows.map((r) => `<b>#${this.data.trials[r]}</b> measured ${pair(...at(r))} ${column.unit}`), hovertemplate: "%{text}<extra></extra>",
      });
    }
  }

  listen() {
    this.listens = true;
    this.plot.on("plotly_click", (event) => { const trial = event.points[0].customdata; if (trial !== undefined) this.toggle(trial); });
    this.plot.on("plotly_selected", (event) => {
      if (!event || !event.range) { this.unbox(); return; }
      const {x, y} = event.range, X = this.columns.get(this.state.x).values, Y = this.columns.get(this.state.y).values;
      const within = (v, [a, b]) => v !== null && v >= Math.min(a, b) && v <= Math.max(a, b);
      this.boxed = new Set(this.data.trials.map((_, r) => r).filter((r) => within(X[r], x) && within(Y[r], y)));
      this.page = 0;
      this.drawTable();
    });
    this.plot.on("plotly_deselect", () => this.unbox());
  }

  unbox() {
    if (this.boxed === null) return;
    this.boxed = null;
    this.drawTable();
  }

  toggle(trial) {
    if (this.chosen.has(trial)) this.chosen.delete(trial);
    else {
      this.chosen.add(trial);
      if (this.chosen.size > MOST_CHOSEN) this.chosen.delete(this.chosen.values().next().value);
    }
    this.drawAll();
  }

  rows() {
    const words = this.section.querySelector("[data-filter]").value.trim().split(/\s+/).filter(Boolean).map((w) => this.condition(w));
    const only = this.section.querySelector("[data-front-only]").checked;
    const rows = [];
    for (let r = 0; r < this.data.trials.length; r += 1) {
      if (this.boxed && !this.boxed.has(r)) continue;
      if (only && this.data.status[r] !== FRONT) continue;
      if (words.every((holds) => holds(r))) rows.push(r);
    }
    const {key, down} = this.sort, sign = down ? -1 : 1;
    const values = key === "status" ? this.data.status : this.columns.get(key).values;
    const second = this.columns.get(this.defaultAxis(0)).values;
    const compare = (a, b) => (a === b ? 0 : a === null ? 1 : b === null ? -1 : sign * (a - b));
    return rows.sort((a, b) => compare(values[a], values[b]) || (second[a] ?? 0) - (second[b] ?? 0));
  }

  condition(word) {
    const match = /^([\w.:-]+?)(<=|>=|!=|=|<|>)(.+)$/.exec(word);
    if (!match) { const sought = word.toLowerCase(); return (r) => this.text(r).toLowerCase().includes(sought) || `#${this.data.trials[r]}` === word || STATUS[this.data.status[r]] === sought; }
    const [, name, sign, text] = match, wanted = Number(text);
    const choice = this.data.choices[name], column = this.columns.get(name) || [...this.columns.values()].find((c) => c.label.toLowerCase().startsWith(name.toLowerCase()));
    if (!choice && !column) return () => false;
    const value = choice ? (r) => choice.values[choice.index[r]] : (r) => column.values[r];
    const test = {"<": (v) => v < wanted, ">": (v) => v > wanted, "<=": (v) => v <= wanted, ">=": (v) => v >= wanted, "=": (v) => String(v) === text || v === wanted, "!=": (v) => String(v) !== text && v !== wanted}[sign];
    return (r) => { const v = value(r); return v !== null && v !== undefined && test(v); };
  }

  drawTable() {
    const rows = this.rows(), pages = Math.max(1, Math.ceil(rows.length / PAGE));
    this.page = Math.min(this.page, pages - 1);
    const keys = [["status", "Standing"], ...this.data.columns.map((c) => [c.key, c.label + (c.unit ? ` (${c.unit})` : "")])];
    const order = [keys.find(([k]) => k === "trial"), ...keys.filter(([k]) => k !== "trial")];
    const header = element("tr", {}, element("th", {scope: "col"}, element("span", {class: "hidden"}, "Choose")),
      ...order.map(([key, label]) => {
        const own = this.sort.key === key;
        return element("th", {scope: "col", class: key === "status" ? null : "num", "aria-sort": own ? (this.sort.down ? "descending" : "ascending") : "none"},
          element("button", {type: "button", "data-sort": key, onclick: () => this.sortBy(key)}, `${label}${own ? (this.sort.down ? " ↓" : " ↑") : ""}`));
      }), element("th", {scope: "col"}, "Architecture"));
    const body = rows.slice(this.page * PAGE, (this.page + 1) * PAGE).map((r) => this.row(r, order));
    const focus = document.activeElement, held = this.table.contains(focus) ? focus.dataset.sort || focus.dataset.choose : null;
    this.table.replaceChildren(element("thead", {}, header), element("tbody", {}, ...body));
    if (held) this.table.querySelector(`[data-sort="${held}"], [data-choose="${held}"]`)?.focus();
    const cut = this.data.total > this.data.trials.length ? `; the page holds ${this.data.trials.length} of ${this.data.total}` : "";
    this.section.querySelector("[data-count]").textContent = `${rows.length} of ${this.data.trials.length} trials${this.boxed ? " in the box" : ""}${cut}`;
    const turn = (by, label) => element("button", {type: "button", ...(this.page + by < 0 || this.page + by >= pages ? {disabled: ""} : {}), onclick: () => { this.page += by; this.drawTable(); }}, label);
    this.section.querySelector("[data-pager]").replaceChildren(turn(-1, "Previous"), element("span", {class: "note"}, `page ${this.page + 1} of ${pages}`), turn(1, "Next"));
  }

  row(r, order) {
    const trial = this.data.trials[r], chosen = this.chosen.has(trial), link = this.link(trial);
    const name = `#${trial}`;
    return element("tr", {"data-picked": String(chosen)},
      element("td", {}, element("input", {type: "checkbox", "data-choose": trial, "aria-label": `Choose trial ${trial}`, ...(chosen ? {checked: ""} : {}), onchange: () => this.toggle(trial)})),
      ...order.map(([key]) => {
        if (key === "trial") return element("th", {scope: "row", class: "num"}, link ? element("a", {href: link}, name) : name);
        if (key === "status") return element("td", {class: STATUS[this.data.status[r]]}, STATUS[this.data.status[r]] + (trial === this.data.knee ? ", knee" : ""));
        return element("td", {class: "num"}, this.cell(this.columns.get(key), r));
      }), element("td", {class: "arch"}, this.text(r)));
  }

  cell(column, r) {
    const error = column.errors && column.errors[r];
    return pair(column.values[r], error) + (error && this.outside.has(r) ? "?" : "");
  }

  sortBy(key) {
    this.sort = {key, down: this.sort.key === key ? !this.sort.down : false};
    this.page = 0;
    this.drawTable();
  }

  drawChosen() {
    const place = this.section.querySelector("[data-chosen]"), rows = [...this.chosen].map((t) => this.rowOf.get(t)).filter((r) => r !== undefined);
    if (!rows.length) { place.replaceChildren(); return; }
    const line = (label, texts) => {
      const differs = new Set(texts).size > 1;
      return element("tr", {class: rows.length > 1 ? (differs ? "differs" : "same") : null}, element("th", {scope: "row"}, label), ...texts.map((t) => element("td", {class: "num"}, t)));
    };
    const names = Object.keys(this.data.choices).filter((name) => rows.some((r) => this.data.choices[name].index[r] >= 0));
    const heads = rows.map((r) => {
      const trial = this.data.trials[r], link = this.link(trial);
      return element("th", {scope: "col", class: "num"}, link ? element("a", {href: link}, `#${trial}`) : `#${trial}`, " ",
        element("button", {type: "button", class: "text", "aria-label": `Let go of trial ${trial}`, onclick: () => this.toggle(trial)}, "×"));
    });
    place.replaceChildren(
      element("table", {}, element("thead", {}, element("tr", {}, element("th", {scope: "col"}, rows.length > 1 ? "Side by side" : "Chosen"), ...heads)),
        element("tbody", {}, line("Standing", rows.map((r) => STATUS[this.data.status[r]])),
          ...this.data.columns.filter((c) => c.key !== "trial").map((c) => line(c.label + (c.unit ? ` (${c.unit})` : ""), rows.map((r) => this.cell(c, r)))),
          ...names.map((name) => line(name, rows.map((r) => { const {values, index} = this.data.choices[name]; return index[r] < 0 ? "–" : String(values[index[r]]); }))))),
      element("p", {}, element("button", {type: "button", onclick: () => { this.chosen.clear(); this.drawAll(); }}, "Let go of all")));
  }

  refresh() {
    this.read();
    this.boxed = null;
    this.drawAll();
  }
}

function ring(rows, X, Y, name, line, size, width) {
  return {x: rows.map((r) => X.values[r]), y: rows.map((r) => Y.values[r]), mode: "markers", name, showlegend: rows.length > 0, hoverinfo: "skip", marker: {size, symbol: "circle-open", color: line, line: {width}}};
}

function wrap(text) {
  const lines = [""];
  for (const word of text.split(" ")) {
    if ((lines.at(-1) + word).length > 60) lines.push("");
    lines[lines.length - 1] += `${word} `;
  }
  return lines.slice(0, 6).map((l) => l.trim().replace(/</g, "&lt;")).join("<br>");
}

function compare(section) {
  const view = json(section.dataset.compare), place = section.querySelector("[data-fronts]");
  const select = (which) => section.querySelector(`[data-axis="${which}"]`), log = (which) => section.querySelector(`[data-log="${which}"]`);
  for (const [which, first] of [["x", 0], ["y", Math.min(1, view.objectives.length - 1)]]) {
    select(which).append(...view.titles.map((title, i) => element("option", {value: i}, title)));
    select(which).value = first;
  }
  const show = () => {
    const x = Number(select("x").value), y = Number(select("y").value);
    const traces = view.studies.map((study, i) => {
      const rows = study.values.map((v, j) => [v, study.trials[j]]).sort((a, b) => a[0][x] - b[0][x]);
      return {
        x: rows.map(([v]) => v[x]), y: rows.map(([v]) => v[y]), text: rows.map(([, t]) => `${study.key} #${t}`), name: study.key,
        mode: view.objectives.length === 2 ? "lines+markers" : "markers", line: {shape: view.better[x] === "min" ? "hv" : "vh", width: 1.2}, marker: {size: 8, symbol: MARKS[i % 9]},
        hovertemplate: "%{text}<br>%{x:.4g}, %{y:.4g}<extra></extra>", ...{line: {color: PALETTE[i % 9], shape: view.better[x] === "min" ? "hv" : "vh", width: 1.2}},
      };
    });
    const axis = (i, which) => ({title: {text: view.titles[i]}, type: log(which).checked ? "log" : "linear", autorange: true});
    draw(place, traces, {xaxis: axis(x, "x"), yaxis: axis(y, "y"), showlegend: true});
  };
  ["x", "y"].forEach((which) => { select(which).addEventListener("change", show); log(which).addEventListener("change", show); });
  redraws.push(show);
  show();
}

// ---- the page

function theme() {
  const button = document.querySelector("[data-theme-switch]"), system = matchMedia("(prefers-color-scheme: dark)");
  let kept = null;
  try { kept = localStorage.getItem("tadnn-theme"); } catch { /* a file may have no storage */ }
  if (kept) root.dataset.theme = kept;
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const say = () => { button.textContent = isDark() ? "Light" : "Dark"; button.setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`); };
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("tadnn-theme", root.dataset.theme); } catch { /* see above */ }
    say();
    redraws.forEach((again) => again());
  });
  system.addEventListener("change", () => { say(); redraws.forEach((again) => again()); });
  say();
}

async function fetched() {
  const answer = await fetch(location.href, {headers: {accept: "text/html"}});
  return answer.ok ? new DOMParser().parseFromString(await answer.text(), "text/html") : null;
}

function watch(explorers) {
  const list = document.querySelector("[data-live]"), study = document.querySelector("[data-live-study]");
  if (!list && !study) return;
  const every = 1000 * Number((list || study).dataset.live || (study && study.dataset.liveStudy));
  const look = async () => {
    // What nobody looks at, and a study that has ended, need no asking again.
    const busy = list || study.querySelector(".state.running"), began = performance.now();
    if (!document.hidden && busy) {
      try {
        const fresh = await fetched();
        if (fresh && list) refreshList(list, fresh.getElementById("live"));
        if (fresh && study) refreshStudy(study, fresh, explorers);
      } catch { /* the server was stopped; the page stays as it is */ }
    }
    // A study that takes long to read is read less often.
    setTimeout(look, Math.max(every, 10 * (performance.now() - began)));
  };
  setTimeout(look, every);
}

function refreshList(list, fresh) {
  if (list.innerHTML === fresh.innerHTML || list.contains(document.activeElement)) return;
  const checked = new Set(all("input:checked", list).map((box) => box.value));
  list.replaceChildren(...fresh.childNodes);
  all("input[type=checkbox]", list).forEach((box) => { box.checked = checked.has(box.value); });
}

function refreshStudy(study, fresh, explorers) {
  const text = fresh.getElementById("study-data").textContent, held = document.getElementById("study-data");
  study.replaceChildren(...fresh.querySelector("[data-live-study]").childNodes);
  if (text === held.textContent) return;
  held.textContent = text;
  const table = fresh.querySelector("#live-more table"), old = document.querySelector("#live-more table");
  if (table && old) old.replaceWith(table);
  explorers.forEach((explorer) => explorer.refresh());
  redraws.forEach((again) => again());
}

// A part of a report that was closed when it was drawn had no width, and opens by its address.
function unfolding() {
  const unfold = () => {
    const part = document.getElementById(location.hash.slice(1));
    if (part && part.tagName === "DETAILS") { part.open = true; part.scrollIntoView(); }
  };
  all("details.part").forEach((part) => part.addEventListener("toggle", () => {
    all(".chart", part).forEach((place) => Plotly.Plots.resize(place));
  }));
  addEventListener("hashchange", unfold);
  unfold();
}

function copying() {
  if (!navigator.clipboard) return;
  all("pre.command").forEach((place) => {
    const button = element("button", {type: "button", class: "text", "aria-label": "Copy the command", onclick: async () => {
      await navigator.clipboard.writeText(place.querySelector("code").textContent);
      button.textContent = "Copied";
    }}, "Copy");
    place.append(button);
  });
}

function exporting() {
  all("[data-export]").forEach((link) => link.addEventListener("click", () => {
    document.querySelector("[data-export-note]").textContent = "Being built and checked; the download starts by itself.";
  }));
}

theme();
copying();
exporting();
if (window.Plotly) {
  const kinds = {history, pairs, curve, kernels};
  const explorers = all("[data-explorer]").map((section) => new Explorer(section));
  all("[data-chart]").forEach((place) => kinds[place.dataset.chart](place));
  all("[data-stairs]").forEach(stairs);
  all("[data-compare]").forEach(compare);
  unfolding();
  watch(explorers);
} else {
  watch([]);
}
