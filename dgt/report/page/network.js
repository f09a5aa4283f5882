// The graph at one iteration: size by lambda, colour by a measurement; and the mixing row of the chosen node.

/** What the page knows of a run at the iteration of the slider: the network of that time and every node's values. */
function momentOf(run, state) {
  const steps = run.nodes.iterations, k = state.at === null ? steps.length - 1 : Math.min(nearest(steps, state.at), steps.length - 1);
  const at = steps.length ? steps[k] : 0;
  const values = Object.fromEntries(Object.entries(run.nodes.values).map(([name, rows]) => [name, rows[k] || []]));
  const known = run.networks.filter((one) => one.iteration <= at);
  const network = known[known.length - 1] || run.networks[0] || null;
  return { k, at, network, values };
}

/** Values of a measurement for all nodes, by name: degree and lambda do not change with the iterations. */
function valuesOf(moment, name) {
  if (name === "degree") return moment.network.degrees;
  if (name === "lambda") return moment.network.weights;
  return moment.network.names.map((_, i) => moment.values[name]?.[i] ?? null);
}

function nodeMetrics(run, data) {
  const found = Object.keys(run.nodes.values).map((name) => {
    const known = data.nodeMetrics[name] || { title: name.replaceAll("_", " "), unit: "" };
    return { name, ...known };
  });
  return [...found, { name: "degree", title: "degree", unit: "" }, { name: "lambda", title: "lambda, the node's weight", unit: "" }];
}

/** Lowest and highest value, of this iteration or of all. */
function domainOf(run, moment, name, fixed) {
  const rows = fixed && run.nodes.values[name] ? run.nodes.values[name].flat() : valuesOf(moment, name);
  const found = range(rows);
  return found && { low: found[0], high: found[1], log: found[0] > 0 && found[1] / found[0] > 30 };
}

function drawNetwork(data, state, choose) {
  const run = data.runs[state.run], moment = momentOf(run, state), network = moment.network;
  byId("network").hidden = !data.runs.some((one) => one.networks.length);
  const metric = nodeMetrics(run, data).find((one) => one.name === state.colour);
  if (!network) {
    byId("graph").replaceChildren(make("p", { class: "empty" }, "This run did not write down its network."));
    byId("scale").replaceChildren();
    byId("row").replaceChildren();
    byId("graph-words").textContent = "";
    return;
  }
  const values = valuesOf(moment, metric.name), domain = domainOf(run, moment, metric.name, state.fixed);
  const share = domain && scale(domain.low, domain.high, 0, 1, domain.log);
  const colours = values.map((value) => (isNumber(value) && domain ? shade(domain.low === domain.high ? 0.5 : share(value)) : null));
  const view = { run, network, values, colours, metric, state, choose };
  byId("graph").replaceChildren(network.places ? graph(view) : cloud(view));
  drawScale(domain, metric);
  byId("graph-words").textContent = network.places
    ? `${network.size} nodes, ${network.edges.length} edges${ofSchedule(network)}. A node's area is its weight lambda. Click a node for its mixing row.`
    : `${network.size.toLocaleString("en")} nodes are too many to draw; each dot is a node${network.names.length < network.size ? " of a sample" : ""}.`;
  drawRow(view);
}

// Where partners change, the edges are those of all exchanges, and rows of W their mean.
function ofSchedule({ schedule }) {
  if (!schedule) return "";
  const who = schedule.one_peer ? "each node has one partner at a time" : "a graph at a time";
  return `, all that a schedule of ${schedule.exchanges} exchanges uses in turn: ${who}, and mixing rows are the mean`;
}

function graph({ network, values, colours, metric, state, choose }) {
  const size = 520, n = network.names.length, heaviest = Math.max(...network.weights);
  const largest = Math.min(30, 210 / Math.sqrt(n)), border = largest + 6;
  const radius = network.weights.map((weight) => Math.max(largest * Math.sqrt(weight / heaviest), 3));
  const xs = network.places.map(([x]) => border + x * (size - 2 * border)), ys = network.places.map(([, y]) => border + y * (size - 2 * border));
  const chosen = network.names.indexOf(state.node), row = chosen >= 0 && network.rows ? new Map(network.rows[chosen]) : new Map();
  const flat = range(ys), top = flat[0] - border, height = flat[1] - flat[0] + 2 * border;
  const picture = svg("svg", { viewBox: `0 ${top} ${size} ${height}`, role: "img", "aria-label": `The network, coloured by ${metric.title}` });
  const [lit, plain] = [[], []];
  for (const [i, j] of network.edges) (i === chosen || j === chosen ? lit : plain).push([i, j]);
  const faint = Math.min(1, 6 / Math.sqrt(network.edges.length) + 0.12);
  for (const [i, j] of [...plain, ...lit]) {
    const weight = i === chosen || j === chosen ? row.get(i === chosen ? j : i) ?? 0.1 : null;
    picture.append(svg("line", {
      x1: xs[i], y1: ys[i], x2: xs[j], y2: ys[j], class: weight === null ? null : "lit",
      opacity: weight === null ? faint : null, style: weight === null ? null : `stroke-width:${1.5 + 12 * weight}`,
    }));
  }
  network.names.forEach((name, i) => {
    const title = `node ${name}: lambda ${words(network.weights[i])}, ${metric.title} ${words(values[i], metric.unit)}`;
    picture.append(svg("g", { class: i === chosen ? "node chosen" : "node", "data-node": name, onclick: () => choose(name) },
      svg("title", {}, title),
      svg("circle", { cx: xs[i], cy: ys[i], r: Math.max(radius[i], 11), style: "fill:transparent;stroke:none" }),
      svg("circle", { cx: xs[i], cy: ys[i], r: radius[i], class: "dot", style: `fill:${colours[i] ? css(colours[i]) : "var(--card)"}` }),
      radius[i] >= 9 ? svg("text", { x: xs[i], y: ys[i], style: `fill:${colours[i] ? inkOn(colours[i]) : "var(--ink)"};font-size:${Math.min(14, radius[i])}px` }, String(name)) : null,
    ));
  });
  return picture;
}

/** Every node as a dot over its weight, where there are too many for a drawing. */
function cloud(view) {
  const picture = dots(view.network.weights, view.values, view.network.names, view.state.node, view.choose, 520, 360);
  picture.querySelectorAll("circle").forEach((dot, i) => {
    if (view.colours[i]) dot.setAttribute("style", `fill:${css(view.colours[i])};stroke-width:.4`);
  });
  return picture;
}

function drawScale(domain, metric) {
  const colours = Array.from({ length: 9 }, (_, k) => css(shade(k / 8))).join(",");
  byId("scale").replaceChildren(...(domain ? [
    make("span", {}, words(domain.low, metric.unit)), make("i", { style: `background:linear-gradient(90deg,${colours})` }),
    make("span", {}, words(domain.high, metric.unit)), make("span", {}, `colour: ${metric.title}${domain.log ? ", logarithmic" : ""}`),
  ] : [make("span", {}, `${metric.title} was not measured here`)]));
}

const MOST_BARS = 18;

function drawRow({ run, network, values, metric, state, choose }) {
  const i = network.names.indexOf(state.node);
  if (i < 0) {
    byId("row").replaceChildren(make("p", { class: "empty" }, "This node is not part of the network at this iteration."));
    return;
  }
  const facts = make("dl", { class: "facts" }, ...[
    ["lambda", words(network.weights[i])], ["degree", words(network.degrees[i])], [metric.name === "degree" || metric.name === "lambda" ? "share of the network" : metric.title,
      metric.name === "degree" || metric.name === "lambda" ? `${words(100 * network.weights[i] / network.size)} %` : words(values[i], metric.unit)],
  ].map(([key, value]) => make("div", {}, make("dt", {}, key), make("dd", {}, value))));
  const parts = [make("h3", {}, `Node ${state.node}`), facts];
  if (!network.rows) {
    parts.push(make("p", { class: "empty" }, "Mixing rows of so large a network are left out of this page."));
  } else {
    const own = network.rows[i].filter(([j]) => j === i), others = network.rows[i].filter(([j]) => j !== i);
    const shown = [...own, ...(others.length > MOST_BARS ? [...others].sort((a, b) => b[1] - a[1]).slice(0, MOST_BARS) : others)];
    const longest = Math.max(...shown.map(([, weight]) => weight));
    parts.push(
      make("p", { class: "hint" }, `Its row of W: how much of whose model it takes at every step${run.strategy === "?" ? "" : ` under Strategy ${run.strategy}`}. The row sums to 1.`),
      make("div", { class: "rowbars", style: "margin-top:10px" }, ...shown.flatMap(([j, weight]) => [
        j === i ? make("span", {}, "itself") : make("button", { type: "button", onclick: () => choose(network.names[j]) }, `node ${network.names[j]}`),
        make("i", { class: j === i ? "own" : null, style: `width:${100 * weight / longest}%` }),
        make("span", { "data-weight": weight }, weight.toFixed(4)),
      ])),
    );
    if (shown.length < own.length + others.length) parts.push(make("p", { class: "hint" }, `and ${others.length - MOST_BARS} more neighbours, none with a larger weight`));
  }
  byId("row").replaceChildren(...parts);
}
