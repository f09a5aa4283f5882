// The curves of all runs over the iterations, with the values under the pointer.

const colourOf = (run) => `var(--s${run.colour})`;

function swatch(run) {
  return make("span", { class: run.dashed ? "swatch dashed" : "swatch", style: `border-color:${colourOf(run)}` });
}

function drawLegend(data, state, changed) {
  byId("legend").hidden = data.runs.length < 2;
  byId("legend").replaceChildren(...data.runs.map((run, k) => make("button", {
    type: "button", "aria-pressed": String(!state.hidden.includes(k)),
    onclick: () => {
      state.hidden = state.hidden.includes(k) ? state.hidden.filter((other) => other !== k) : [...state.hidden, k];
      changed();
    },
  }, swatch(run), run.name)));
}

function drawCurves(data, state) {
  const plot = byId("plot"), metric = data.metrics.find((one) => one.name === state.metric);
  const shown = data.runs.filter((run, k) => !state.hidden.includes(k) && metric && run.values[metric.name]);
  const usable = (value) => isNumber(value) && (!state.log || value > 0);
  const last = Math.max(...shown.flatMap((run) => run.iterations)), first = state.part * last;
  const all = shown.flatMap((run) => [run.values[metric.name], ...(run.bands[metric.name] || [])].flatMap(
    (values) => values.filter((value, k) => usable(value) && run.iterations[k] >= first)));
  const span = range(all), along = range(shown.flatMap((run) => run.iterations.filter((at) => at >= first)));
  if (!span) {
    const why = all.length || !shown.length ? "Nothing to show: no run is chosen, or none has measured anything."
      : state.log ? "No positive values: switch the logarithmic scale off." : "No finite values.";
    plot.replaceChildren(make("p", { class: "empty" }, why));
    return;
  }
  const width = Math.max(plot.clientWidth, 240), height = width < 520 ? 270 : 380;
  const labelled = width >= 620 && shown.length > 1 && shown.length <= 14;
  const longest = Math.max(...shown.map((run) => run.name.length));
  const margin = { left: 58, right: labelled ? Math.min(24 + 6.6 * longest, 220) : 14, top: 26, bottom: 40 };
  const pad = state.log ? 0 : (span[1] - span[0] || Math.abs(span[0]) || 1) * 0.04;
  const stretch = state.log ? (span[1] / span[0]) ** 0.03 : 1;
  let [low, high] = [span[0] / stretch - pad, span[1] * stretch + pad];
  if (!state.log && span[0] >= 0) low = Math.max(low, 0);
  if (low === high) [low, high] = [low / 2, high * 2];
  const x = scale(along[0], along[1], margin.left, width - margin.right);
  x.first = along[0];
  const y = scale(low, high, height - margin.bottom, margin.top, state.log);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true" });
  drawAxes(picture, { x, y, low, high, along, width, height, margin, log: state.log, title: titled(metric) });
  if (shown.length === 1) drawEvents(picture, shown[0].events, { x, along, height, margin });
  for (const run of shown) picture.append(band(run, metric.name, x, y, usable));
  for (const run of shown) picture.append(line(run, metric.name, x, y, usable), ...points(run, metric.name, x, y, usable));
  if (labelled) drawLabels(picture, shown, metric.name, y, usable, { width, height, margin });
  const cursor = svg("g", { visibility: "hidden" });
  picture.append(cursor);
  const tip = make("div", { class: "tip", hidden: true, role: "status" });
  plot.replaceChildren(picture, tip);
  follow(plot, { shown, metric, x, y, width, height, margin, along, cursor, tip, usable });
}

const inView = (iteration, x) => iteration >= x.first;
const titled = (metric) => (metric.unit ? `${metric.title}, ${metric.unit}` : metric.title);

function drawAxes(picture, box) {
  const { x, y, width, height, margin } = box;
  for (const tick of ticks(box.low, box.high, height < 300 ? 4 : 6, box.log)) {
    picture.append(
      svg("line", { x1: margin.left, x2: width - margin.right, y1: y(tick), y2: y(tick), stroke: "var(--grid)" }),
      svg("text", { x: margin.left - 8, y: y(tick) + 4, "text-anchor": "end" }, words(tick)),
    );
  }
  for (const tick of ticks(box.along[0], box.along[1], width < 520 ? 4 : 8)) {
    if (!Number.isInteger(tick)) continue;
    picture.append(
      svg("line", { x1: x(tick), x2: x(tick), y1: height - margin.bottom, y2: height - margin.bottom + 5, stroke: "var(--edge)" }),
      svg("text", { x: x(tick), y: height - margin.bottom + 19, "text-anchor": "middle" }, words(tick)),
    );
  }
  picture.append(
    svg("line", { x1: margin.left, x2: width - margin.right, y1: height - margin.bottom, y2: height - margin.bottom, stroke: "var(--edge)" }),
    svg("text", { x: margin.left - 50, y: 12, id: "y-title" }, box.title),
    svg("text", { x: width - margin.right, y: height - 4, "text-anchor": "end" }, "iteration"),
  );
}

/** What happened to a run, where it happened. */
function drawEvents(picture, events, { x, along, height, margin }) {
  for (const { iteration, words: said } of events) {
    if (iteration < along[0] || iteration > along[1]) continue;
    picture.append(
      svg("line", { x1: x(iteration), x2: x(iteration), y1: margin.top, y2: height - margin.bottom, stroke: "var(--warn)", "stroke-dasharray": "3 4" }),
      svg("text", { x: x(iteration) + 6, y: margin.top + 10, style: "fill:var(--warn)" }, said.split(/ at iteration|;/)[0]),
    );
  }
}

/** The 10 to 90 % band over the seeds of a run that has several. */
function band(run, metric, x, y, usable) {
  const [low, high] = run.bands[metric] || [[], []];
  const kept = run.iterations.map((_, k) => k).filter((k) => usable(low[k]) && usable(high[k]) && inView(run.iterations[k], x));
  const place = (k, values) => `${x(run.iterations[k]).toFixed(1)} ${y(values[k]).toFixed(1)}`;
  const path = [...kept.map((k) => place(k, high)), ...kept.reverse().map((k) => place(k, low))].join("L");
  return svg("path", { d: path ? `M${path}Z` : "", fill: colourOf(run), opacity: 0.15 });
}

/** Where there are few values, a dot each: a run that failed early has no line. */
function points(run, metric, x, y, usable) {
  if (run.iterations.length > 5) return [];
  return run.values[metric].flatMap((value, k) => (usable(value) && inView(run.iterations[k], x)
    ? [svg("circle", { cx: x(run.iterations[k]), cy: y(value), r: 4, fill: colourOf(run) })] : []));
}

/** Gaps where a value is missing. */
function line(run, metric, x, y, usable) {
  let path = "", pen = false;
  run.values[metric].forEach((value, k) => {
    if (!usable(value) || !inView(run.iterations[k], x)) { pen = false; return; }
    path += `${pen ? "L" : "M"}${x(run.iterations[k]).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = true;
  });
  return svg("path", {
    d: path, class: "curve", fill: "none", stroke: colourOf(run), "stroke-width": 1.8, "stroke-linejoin": "round",
    "stroke-linecap": "round", "stroke-dasharray": run.dashed ? "6 4.5" : null,
  });
}

/** Names at the ends of the lines, moved apart where they would cover each other. */
function drawLabels(picture, shown, metric, y, usable, box) {
  const ends = shown.map((run) => {
    const values = run.values[metric].filter(usable);
    return { run, at: values.length ? y(values[values.length - 1]) : null };
  }).filter((end) => end.at !== null).sort((a, b) => a.at - b.at);
  ends.forEach((end, k) => { end.y = k ? Math.max(end.at, ends[k - 1].y + 15) : end.at; });
  let lowest = box.height - box.margin.bottom - 2;
  for (const end of [...ends].reverse()) { end.y = Math.min(end.y, lowest); lowest = end.y - 15; }
  const from = box.width - box.margin.right;
  for (const { run, at, y: place } of ends) {
    picture.append(
      svg("path", { d: `M${from + 2} ${at}L${from + 10} ${place}`, stroke: colourOf(run), fill: "none", opacity: 0.6 }),
      svg("text", { x: from + 13, y: place + 4, style: `fill:${colourOf(run)};font-weight:600` }, run.name),
    );
  }
}

/** A line at the nearest iteration and the values of all runs there: by pointer, touch or arrow keys. */
function follow(plot, view) {
  const steps = [...new Set(view.shown.flatMap((run) => run.iterations))].filter((at) => inView(at, view.x)).sort((a, b) => a - b);
  let chosen = steps.length - 1;
  const hide = () => { view.tip.hidden = true; view.cursor.setAttribute("visibility", "hidden"); };
  const show = (k) => { chosen = k; showValues(view, steps[k]); };
  plot.onpointermove = plot.onpointerdown = (event) => {
    const box = plot.getBoundingClientRect();
    const share = (event.clientX - box.left) * view.width / box.width;
    const [first, last] = [view.margin.left, view.width - view.margin.right];
    const at = view.along[0] + (share - first) / (last - first) * (view.along[1] - view.along[0]);
    show(nearest(steps, at));
  };
  plot.onpointerleave = (event) => { if (event.pointerType === "mouse") hide(); };
  plot.onblur = hide;
  plot.onkeydown = (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1, Home: -steps.length, End: steps.length }[event.key];
    if (event.key === "Escape") hide();
    if (!move) return;
    event.preventDefault();
    show(Math.min(Math.max(chosen + move, 0), steps.length - 1));
  };
}

const ENDS_TOLD = 6; // highest and lowest values, where there are too many lines to tell all

function showValues(view, at) {
  const { x, y, tip, cursor, metric, margin, width, height } = view;
  const found = view.shown.map((run) => ({ run, value: valueAt(run, metric.name, at) }));
  found.sort((a, b) => (b.value ?? -Infinity) - (a.value ?? -Infinity));
  cursor.replaceChildren(
    svg("line", { x1: x(at), x2: x(at), y1: margin.top, y2: height - margin.bottom, stroke: "var(--soft)", "stroke-dasharray": "2 3" }),
    ...found.filter(({ value }) => view.usable(value)).map(({ run, value }) => svg("circle", {
      cx: x(at), cy: y(value), r: 4, fill: colourOf(run), stroke: "var(--card)", "stroke-width": 1.5,
    })),
  );
  cursor.setAttribute("visibility", "visible");
  const row = ({ run, value }) => make("tr", {},
    make("td", {}, swatch(run)), make("td", {}, run.name), make("td", {}, words(value, metric.unit) + (run.seeds > 1 ? ` (${run.seeds} seeds)` : "")));
  const many = found.length > 2 * ENDS_TOLD ? found.filter(({ value }) => isNumber(value)) : [], between = many.length - 2 * ENDS_TOLD;
  const rows = between > 0 ? [...many.slice(0, ENDS_TOLD).map(row),
    make("tr", {}, make("td", { colspan: 3 }, `${between} between`)), ...many.slice(-ENDS_TOLD).map(row)] : found.map(row);
  tip.replaceChildren(make("b", {}, `iteration ${at}`), make("table", {}, make("tbody", {}, ...rows)));
  tip.hidden = false;
  const place = x(at) / width * tip.parentElement.clientWidth, room = tip.offsetWidth + 14;
  tip.style.left = `${Math.max(0, place + room > tip.parentElement.clientWidth ? place - room : place + 14)}px`;
}

/** The value at that iteration, or the last one measured before it; none once a run has ended. */
function valueAt(run, metric, at) {
  if (!run.iterations.length || at > run.iterations[run.iterations.length - 1] || at < run.iterations[0]) return null;
  let k = nearest(run.iterations, at);
  if (run.iterations[k] > at) k -= 1;
  return run.values[metric][k];
}
