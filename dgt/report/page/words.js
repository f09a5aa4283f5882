// What is told in words: the verdict, remarks, settings, events, environment.

function tellHead(data) {
  const one = data.count === 1 ? data.runs[0] : null;
  byId("kicker").textContent = one ? `dgt report · ${one.path}` : `dgt report · ${data.count} runs`;
  byId("headline").textContent = data.headline;
  if (one) {
    byId("state").textContent = data.live && !one.ended ? "going on · refreshes itself" : one.state;
    byId("state").classList.add(one.state.split(" ")[0]);
  } else if (data.live) {
    byId("state").textContent = "refreshes itself";
    byId("state").classList.add("going");
  }
  byId("details").replaceChildren(
    ...(one ? one.failures.filter((failure) => failure.first).map(reason) : []), ...data.details.map((line) => make("p", {}, line)));
  const notes = [...data.notes.map((words) => [null, words]), ...data.runs.flatMap((run) => run.notes.map((words) => [data.runs.length > 1 ? run.name : null, words]))];
  byId("notes").hidden = !notes.length;
  byId("notes").replaceChildren(...notes.map(([who, words]) => make("li", {}, who ? make("b", {}, `${who}: `) : null, words)));
  byId("footer").textContent = `Made by dgt report at ${data.made}. This file needs no network and no other file.`;
}

function table(head, rows) {
  return make("div", { class: "scroll" }, make("table", {},
    make("thead", {}, make("tr", {}, ...head.map((text) => make("th", {}, text)))), make("tbody", {}, ...rows)));
}

function tellConfig({ runs, rows }) {
  const line = ([key, differs, ...values], mark) => make("tr", { class: mark && differs ? "differs" : null },
    make("td", { class: "key" }, key), ...values.map((value) => make("td", {}, value)));
  const differing = rows.filter(([, differs]) => differs);
  byId("differ").replaceChildren(runs.length < 2 ? make("p", { class: "empty" }, "One run: nothing to compare with.")
    : differing.length ? table(["differs", ...runs], differing.map((row) => line(row, false)))
      : make("p", { class: "empty" }, "The runs do not differ in any setting."));
  byId("all").replaceChildren(rows.length ? table(["setting", ...(runs.length < 2 ? ["value"] : runs)], rows.map((row) => line(row, runs.length > 1)))
    : make("p", { class: "empty" }, "No settings were written down."));
}

function tellEvents(data) {
  const parts = [], several = data.runs.length > 1;
  for (const run of data.runs) {
    const first = run.failures.find((failure) => failure.first);
    if (!first && !run.events.length) continue;
    if (several) parts.push(make("h3", {}, run.name));
    for (const event of run.events) parts.push(make("p", {}, `Iteration ${event.iteration}: ${event.words}`));
    if (!first) continue;
    parts.push(reason(first));
    if (run.trace) parts.push(make("details", {}, make("summary", {}, "Traceback"), make("pre", {}, run.trace)));
    const others = run.failures.filter((failure) => !failure.first);
    if (others.length) {
      parts.push(make("details", {}, make("summary", {}, `${others.length} other rank${others.length > 1 ? "s" : ""}`),
        table(["rank", "host", "reason"], others.map(({ rank, host, reason }) => make("tr", {}, make("td", {}, String(rank)), make("td", {}, host), make("td", {}, reason))))));
    }
  }
  byId("events").hidden = !parts.length;
  byId("happened").replaceChildren(...parts);
}

function reason({ rank, host, reason: words }) {
  return make("p", { class: "reason" }, make("b", {}, `Rank ${rank}${host ? ` on ${host}` : ""}: `), words);
}

/** What all runs have in common is said once. */
function tellEnvironment(data) {
  const keys = [...new Set(data.runs.flatMap((run) => Object.keys(run.environment)))].filter((key) => key !== "command");
  const valueOf = (run, key) => String(run.environment[key] ?? "").replace(/T(\d\d:\d\d:\d\d)\+00:00$/, " $1 UTC");
  const several = data.runs.length > 1;
  const rows = keys.map((key) => {
    const values = data.runs.map((run) => valueOf(run, key)), same = new Set(values).size === 1;
    const cells = same ? [make("td", { colspan: values.length }, values[0])] : values.map((value) => make("td", {}, value));
    return make("tr", {}, make("td", { class: "key" }, key), ...cells);
  });
  const begun = data.runs.filter((run) => run.environment.command), alike = new Set(begun.map((run) => run.environment.command)).size === 1;
  const commands = (alike ? begun.slice(0, 1) : begun).flatMap((run) => [
    make("dt", {}, alike ? "command" : run.name), make("dd", { class: "command" }, run.environment.command)]);
  byId("where").replaceChildren(
    keys.length ? table(["", ...(several ? data.runs.map((run) => run.name) : [""])], rows) : make("p", { class: "empty" }, "No environment was written down."),
    make("dl", { class: "commands" }, ...commands));
}
