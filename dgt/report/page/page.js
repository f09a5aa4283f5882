// What is chosen, kept in the address so that it survives a reload; every choice draws anew what depends on it.

const data = JSON.parse(byId("data").textContent);

const state = { metric: data.metric, log: null, part: 0, hidden: [], run: 0, colour: "loss", at: null, fixed: false, node: null };

function recall() {
  try {
    Object.assign(state, JSON.parse(decodeURIComponent(location.hash.slice(1)) || "{}"));
  } catch { /* somebody else's address */ }
  if (!data.metrics.some((metric) => metric.name === state.metric)) state.metric = data.metric;
  if (!data.runs[state.run]) state.run = 0;
  const run = data.runs[state.run], known = nodeMetrics(run, data).map((metric) => metric.name);
  if (!known.includes(state.colour)) state.colour = known[0];
  const names = run.networks.flatMap((network) => network.names);
  if (!names.includes(state.node)) state.node = names.length ? heaviest(run.networks[run.networks.length - 1]) : null;
  if (state.log === null) state.log = data.metrics.find((metric) => metric.name === state.metric)?.log ?? false;
}

const heaviest = ({ names, weights }) => names[weights.indexOf(Math.max(...weights))];

function remember() {
  try {
    history.replaceState(null, "", `#${encodeURIComponent(JSON.stringify(state))}`);
  } catch { /* some browsers refuse it for files */ }
}

function options(id, entries, chosen) {
  byId(id).replaceChildren(...entries.map(([value, text]) => make("option", { value, selected: String(value) === String(chosen) }, text)));
}

function drawTools() {
  const run = data.runs[state.run], steps = run.nodes.iterations, moment = momentOf(run, state);
  options("metric", data.metrics.map((metric) => [metric.name, titled(metric)]), state.metric);
  byId("log").checked = state.log;
  byId("part").value = String(state.part);
  options("run", data.runs.map((one, k) => [k, one.name]), state.run);
  byId("run-label").hidden = data.runs.length < 2;
  options("colour", nodeMetrics(run, data).map((metric) => [metric.name, titled(metric)]), state.colour);
  const names = moment.network ? moment.network.names : [];
  options("node", names.map((name) => [name, String(name)]), state.node);
  const slider = byId("at");
  slider.max = Math.max(steps.length - 1, 0);
  slider.value = moment.k;
  slider.disabled = byId("play").disabled = steps.length < 2;
  slider.closest(".time").hidden = !steps.length; // nodes were not measured one by one
  byId("at-words").textContent = `${moment.at} of ${run.wanted ?? moment.at}`;
  byId("fixed").checked = state.fixed;
}

function drawNodesAndNetwork() {
  drawTools();
  drawNetwork(data, state, choose);
  drawNodes(data, state, choose);
  remember();
}

function drawAll() {
  drawLegend(data, state, drawAll);
  drawCurves(data, state);
  drawNodesAndNetwork();
}

function choose(name) {
  state.node = name;
  drawNodesAndNetwork();
}

/** The latest iteration stays the latest, however many follow. */
function moveTo(k) {
  const steps = data.runs[state.run].nodes.iterations;
  state.at = k >= steps.length - 1 ? null : steps[k];
  drawNodesAndNetwork();
}

let playing = null;

function play() {
  if (playing !== null) {
    clearInterval(playing);
    playing = null;
  } else {
    if (Number(byId("at").value) >= Number(byId("at").max)) moveTo(0);
    playing = setInterval(() => {
      const next = Number(byId("at").value) + 1;
      if (next > Number(byId("at").max)) play(); else moveTo(next);
    }, 140);
  }
  byId("play").textContent = playing === null ? "Play" : "Pause";
  byId("play").setAttribute("aria-pressed", String(playing !== null));
}

byId("metric").onchange = (event) => {
  state.metric = event.target.value;
  state.log = data.metrics.find((metric) => metric.name === state.metric).log;
  drawAll();
};
byId("log").onchange = (event) => { state.log = event.target.checked; drawAll(); };
byId("part").onchange = (event) => { state.part = Number(event.target.value); drawAll(); };
byId("run").onchange = (event) => { state.run = Number(event.target.value); remember(); recall(); drawNodesAndNetwork(); };
byId("colour").onchange = (event) => { state.colour = event.target.value; drawNodesAndNetwork(); };
byId("node").onchange = (event) => choose(Number(event.target.value));
byId("at").oninput = (event) => moveTo(Number(event.target.value));
byId("fixed").onchange = (event) => { state.fixed = event.target.checked; drawNodesAndNetwork(); };
byId("play").onclick = play;

recall();
tellHead(data);
tellConfig(data.config);
tellEvents(data);
tellEnvironment(data);
drawAll();

let width = window.innerWidth;
window.addEventListener("resize", () => {
  if (window.innerWidth !== width) { width = window.innerWidth; drawCurves(data, state); drawNodes(data, state, choose); }
});
window.addEventListener("beforeprint", () => drawCurves(data, state));

// A run that goes on: the command writes this file anew, and the page looks again, unless somebody is using it.
if (data.live) {
  const key = `scroll ${location.pathname}`;
  try { window.scrollTo(0, Number(sessionStorage.getItem(key) ?? 0)); } catch { /* no storage for files */ }
  let touched = Date.now();
  for (const event of ["pointerdown", "pointermove", "keydown", "input"]) {
    window.addEventListener(event, () => { touched = Date.now(); });
  }
  setInterval(() => {
    if (Date.now() - touched < 1500 || playing !== null) return;
    try { sessionStorage.setItem(key, String(window.scrollY)); } catch { /* the browser keeps it, too */ }
    location.reload();
  }, 500);
}
