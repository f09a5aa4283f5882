// Every node's weight and measurements at the iteration of the slider: bars, or dots over lambda if there are many.

const MOST_NODE_BARS = 120;

function drawNodes(data, state, choose) {
  const run = data.runs[state.run], moment = momentOf(run, state), network = moment.network;
  byId("nodes").hidden = !network;
  if (!network) return;
  const many = network.names.length > MOST_NODE_BARS;
  byId("nodes-words").textContent = `${data.runs.length > 1 ? `${run.name}, ` : ""}${run.nodes.iterations.length ? `iteration ${moment.at}, ` : ""}${many ? "each dot a node over its weight lambda" : "by node number"}`;
  const shown = nodeMetrics(run, data).filter(({ name }) => name !== "degree" && !(many && name === "lambda"));
  shown.sort((a, b) => (b.name === "lambda") - (a.name === "lambda"));
  byId("bars").replaceChildren(...shown.map((metric) => {
    const values = valuesOf(moment, metric.name), found = range(values);
    const said = make("p", {}), chosen = network.names.indexOf(state.node);
    const tell = (i) => {
      said.textContent = !found ? "not measured" : `${words(found[0], metric.unit)} to ${words(found[1], metric.unit)}`
        + (i < 0 ? "" : `; node ${network.names[i]}: ${words(values[i], metric.unit)}`);
    };
    tell(chosen);
    const picture = many ? dots(network.weights, values, network.names, state.node, choose, panelWidth(), 210)
      : bars(values, network.names, state.node, choose, tell);
    picture.addEventListener("pointerleave", () => tell(chosen));
    return make("div", { "data-metric": metric.name }, make("h3", {}, titled(metric)), said, picture);
  }));
}

/** Drawn at the size it is shown, so that letters keep theirs. */
const panelWidth = () => { const room = byId("bars").clientWidth; return room >= 836 ? (room - 36) / 2 : Math.max(room, 200); };

function bars(values, names, chosen, choose, tell) {
  const width = panelWidth(), height = 150, left = 44, bottom = 20, n = names.length, found = range([0, ...values]);
  const y = scale(found[0], found[1] || 1, height - bottom, 8), step = (width - left) / n;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "bars by node" });
  for (const tick of ticks(found[0], found[1] || 1, 4)) {
    picture.append(
      svg("line", { x1: left, x2: width, y1: y(tick), y2: y(tick), stroke: "var(--grid)" }),
      svg("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, words(tick)),
    );
  }
  const every = Math.ceil(n * 20 / (width - left));
  names.forEach((name, i) => {
    const value = values[i] ?? 0, top = Math.min(y(value), y(0)), tall = Math.abs(y(value) - y(0));
    const place = left + i * step;
    picture.append(
      svg("rect", { x: place, y: 0, width: step, height: height - bottom, style: "fill:transparent", onpointerenter: () => tell(i), onclick: () => choose(name) }),
      svg("rect", { x: place + step * 0.14, y: top, width: step * 0.72, height: tall, rx: Math.min(2, step / 5), class: name === chosen ? "bar chosen" : "bar",
        onpointerenter: () => tell(i), onclick: () => choose(name) }, svg("title", {}, `node ${name}: ${words(values[i])}`)),
    );
    if (i % every === 0) picture.append(svg("text", { x: place + step / 2, y: height - 5, "text-anchor": "middle" }, String(name)));
  });
  return picture;
}

function dots(weights, values, names, chosen, choose, width, height) {
  const left = 52, bottom = 34, along = range(weights), found = range(values) || [0, 1];
  const wide = along[0] > 0 && along[1] / along[0] > 30, tall = found[0] > 0 && found[1] / found[0] > 30;
  const x = scale(along[0], along[1], left + 6, width - 8, wide), y = scale(found[0], found[1], height - bottom - 4, 10, tall);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "dots over lambda" });
  for (const tick of ticks(found[0], found[1], 4, tall)) {
    picture.append(svg("line", { x1: left, x2: width, y1: y(tick), y2: y(tick), stroke: "var(--grid)" }),
      svg("text", { x: left - 6, y: y(tick), style: "text-anchor:end;font-weight:400" }, words(tick)));
  }
  for (const tick of ticks(along[0], along[1], 5, wide)) picture.append(svg("text", { x: x(tick), y: height - bottom + 14, style: "text-anchor:middle;font-weight:400" }, words(tick)));
  picture.append(svg("text", { x: width, y: height - 3, style: "text-anchor:end;font-weight:400" }, wide ? "lambda, logarithmic" : "lambda"));
  names.forEach((name, i) => picture.append(svg("circle", {
    cx: x(weights[i]), cy: isNumber(values[i]) ? y(values[i]) : -20, r: name === chosen ? 5 : 2.6, class: name === chosen ? "dot chosen" : "dot", "data-node": name,
    visibility: isNumber(values[i]) ? null : "hidden", onclick: () => choose(name),
  }, svg("title", {}, `node ${name}: ${words(values[i])}, lambda ${words(weights[i])}`))));
  return picture;
}
