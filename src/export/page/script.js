"use strict";
// Names of pods, VMs and units are untrusted: everything is displayed by textContent.

const FETCH_EVERY_MS = 5000;
// An agent responds within 10 s, also if the kernel's files are slow to read.
const RESPONSE_TIMEOUT_MS = 12000;
// Six ticks, as for the agent's /livez.
const TICK_OVERDUE_MS = 30000;
const MOST_ROWS = 200;
const MOST_USERS = 8;
// CPUs that a cgroup must use to be listed as a CPU user.
const USES = 0.01;
// Share of time from which a workload counts as slowed down by its own limits.
const MUCH = 0.1;

const byId = (id) => document.getElementById(id);
const known = (value) => value !== null && value !== undefined;

// Ticks that the history has at most, after the first.
const TICKS = 119;
// Characters of a name in a sentence, and of a line of a phone.
const SHORT = 24;
const LINE = 44;

// The last snapshot, its arrival on this browser's clock, the snapshot before, and the last error.
let seen = null, seenAt = 0, before = null, failure = null;

// ---- numbers ----

function percent(share) {
  if (!known(share)) return "–";
  return (share * 100).toFixed(0) + "\u00a0%";
}

function bytes(count) {
  if (!known(count)) return "–";
  if (count === "max") return "none";
  const [unit, size] = count < 2 ** 20 ? ["KiB", 2 ** 10] : count < 2 ** 30 ? ["MiB", 2 ** 20] : ["GiB", 2 ** 30];
  return (count / size).toFixed(unit === "GiB" ? 1 : 0) + "\u00a0" + unit;
}

function cpus(count) {
  if (!known(count)) return "–";
  return count === "max" ? "none" : count.toFixed(2);
}

// "1 VM", "2 VMs", "0 cgroups".
const counted = (count, kind) => `${count} ${count === 1 ? kind.replace(/s$/, "") : kind}`;

function duration(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 120) return seconds + " s";
  return seconds < 7200 ? Math.floor(seconds / 60) + " min" : Math.floor(seconds / 3600) + " h";
}

// Ages are relative to the agent's clock, since the browser's may be wrong.
const sinceResponse = () => performance.now() - seenAt;
const ageOf = (atMs) => seen.observed_at_ms + sinceResponse() - atMs;
const ago = (atMs) => known(atMs) ? duration(ageOf(atMs)) + " ago" : "not yet";

// A VM that waits for longer than its owner accepts.
const isOverBudget = (c) => known(c.cpu_wait_budget) && (c.scored?.cpu_ready ?? 0) > c.cpu_wait_budget;

function nameOf(c) {
  const inNamespace = (name) => c.namespace ? `${c.namespace}/${name}` : name;
  if (c.is_vm) return inNamespace(c.vm) + (c.awaits_handover ? " (arriving)" : isOverBudget(c) ? " (over budget)" : "");
  if (c.pod) return inNamespace(c.pod) + (c.container ? "/" + c.container : "");
  return c.unit ?? c.id;
}

// The same in a sentence: a VM or a pod without its namespace, and of a path the end.
function short(c) {
  const end = c.id.split("/").at(-1).replace(/^.*?([0-9a-f]{12})[0-9a-f]{52}.*$/, "$1");
  const name = (c.is_vm ? c.vm : c.pod ?? c.unit) ?? `…/${end}`;
  return name.length > SHORT ? name.slice(0, SHORT - 1) + "…" : name;
}

// ---- tables ----

// A cell with a text; a dash and zeros are dimmed.
function cell(text, kind) {
  const box = document.createElement("td");
  box.textContent = text;
  if (kind) box.className = kind;
  if (/^[^1-9]*$/.test(text)) box.classList.add("zero");
  return box;
}

// A cell with a share and a bar of this kind.
function share(kind, value, words) {
  const box = cell(words ?? percent(value), "share " + kind);
  box.style.setProperty("--share", (value ?? 0) * 100 + "%");
  return box;
}

function row(c, cells) {
  const line = document.createElement("tr"), name = document.createElement("th");
  name.scope = "row";
  name.textContent = nameOf(c);
  name.title = c.id;
  line.append(name, ...cells);
  return line;
}

const contention = (c) => c.scored ? Math.max(c.scored.contention.cpu ?? -1, c.scored.contention.memory ?? -1) : -1;
const waited = (c) => Math.max(...["cpu", "memory", "io"].map((resource) => c.pressure[resource].some ?? -1));
const byContention = (a, b) => isOverBudget(b) - isOverBudget(a) || contention(b) - contention(a) || waited(b) - waited(a) || (a.id < b.id ? -1 : 1);

// A tick has the CPU use of scored containers only. Others are computed from the counters.
function used(c) {
  if (known(c.scored?.usage)) return c.scored.usage;
  const then = before?.used.get(c.id), passed = seen.observed_at_ms - (before?.at ?? 0);
  return known(then) && known(c.cpu_seconds) && passed > 0 && c.cpu_seconds >= then ? (c.cpu_seconds - then) / (passed / 1000) : null;
}

function pressures(c, kind) {
  // Of scored containers the last tick's, since own limits are of that window.
  const { cpu, memory, io } = c.scored?.pressure ?? c.pressure;
  return [cell(`${percent(cpu.some)} / ${percent(cpu.full)}`, kind), cell(percent(memory.some), kind), cell(percent(io.some), kind)];
}

const memory = (c) => cell(`${bytes(c.memory_bytes)} / ${bytes(c.memory_max)}`);

// The larger of CPU and memory, with its name. Where CPU is unknown, memory's zero is not the larger.
function larger(kind, value) {
  const [cpu, memory] = [value("cpu"), value("memory")], isMemory = (memory ?? 0) > (cpu ?? 0);
  const largest = isMemory ? memory : cpu;
  return share(kind, largest, known(largest) && largest > 0 ? `${isMemory ? "memory" : "CPU"} ${percent(largest)}` : percent(largest));
}

function scored(c) {
  return [
    larger("node", (resource) => c.scored?.contention[resource]),
    larger("own", (resource) => c.scored?.waiting[resource]?.own_limit),
    cell(`${cpus(used(c))} / ${cpus(c.cpu_request)} / ${cpus(c.cpu_limit)}`), memory(c), ...pressures(c, "psi"),
  ];
}

const unscored = (c) => [...pressures(c), cell(`${cpus(used(c))} / ${cpus(c.cpu_limit)}`), memory(c)];

// CPUs used above the request; all of them without a known request.
const excess = (c) => Math.max(0, used(c) - (c.cpu_request ?? 0));

function usersOf(cgroups) {
  const users = cgroups.filter((c) => c.is_user && (used(c) ?? 0) >= USES);
  return users.sort((a, b) => excess(b) - excess(a) || used(b) - used(a) || (a.id < b.id ? -1 : 1));
}

function showTable(id, isShown) {
  byId(id).closest(".scroll").hidden = !isShown;
}

function showUsers(users) {
  const cells = (c) => [cell(cpus(excess(c))), cell(cpus(used(c))), cell(cpus(c.cpu_request))];
  byId("users").replaceChildren(...users.slice(0, MOST_USERS).map((c) => row(c, cells(c))));
}

// What can be scored, in this order: its name, and which cgroups are members.
const POPULATIONS = [
  ["VMs", (c) => c.is_vm],
  ["containers", (c) => c.level === "container"],
  ["units", (c) => known(c.scored)],
];

// The cgroups of the scored population. Where that is unknown or has no members, those of the first that
// has some, or all.
function split({ node, cgroups }) {
  const below = cgroups.filter((c) => c.level !== "root").sort(byContention);
  const first = POPULATIONS.filter(([name]) => name === node.population);
  const found = [...first, ...POPULATIONS].find(([, isIt]) => below.some(isIt));
  if (!found) return ["cgroups", below, []];
  const [name, isIt] = found;
  return [name, below.filter(isIt), below.filter((c) => !isIt(c))];
}

function fill(id, titleId, kind, cgroups, cells) {
  const more = cgroups.length > MOST_ROWS ? ` (${MOST_ROWS} shown)` : "";
  byId(titleId).textContent = counted(cgroups.length, kind) + more;
  byId(id).replaceChildren(...cgroups.slice(0, MOST_ROWS).map((c) => row(c, cells(c))));
}

// ---- the node and the agent ----

// Whether the reader chose to show or to hide pressure.
let pressureChosen = false;

function showPressure(isShown) {
  byId("raw").checked = isShown;
  document.body.classList.toggle("with-psi", isShown);
}

function tile(resource, title, node) {
  const part = (kind, text) => {
    const words = document.createElement("span");
    words.className = kind;
    words.textContent = text;
    return words;
  };
  const raw = node.pressure[resource], value = node.contention[resource];
  byId(resource).replaceChildren(part("", title), part(value === 0 ? "value zero" : "value", percent(value)),
    part("psi quiet", `pressure: ${percent(raw.some)} some, ${percent(raw.full)} full`));
}

const list = (names, most) => names.length > most ? `${names.slice(0, most).join(", ")} and ${names.length - most} more`
  : names.length > 1 ? `${names.slice(0, -1).join(", ")} and ${names.at(-1)}` : names.join("");

// The headline: who waits because of the node. It fits a line of a phone.
function sentence({ node, levels, warm_up_left_s: left }, members) {
  const waits = (c, resource) => (c.scored?.contention[resource] ?? 0) >= levels.medium;
  const words = [["cpu", "CPU"], ["memory", "memory"]].filter(([resource]) => members.some((c) => waits(c, resource)));
  const waiting = members.filter((c) => words.some(([resource]) => waits(c, resource))).map(short);
  if (waiting.length > 0) {
    const rest = ` ${waiting.length > 1 ? "wait" : "waits"} for ${words.map(([, word]) => word).join(" and ")}.`;
    const fitting = [3, 2, 1].map((most) => list(waiting, most) + rest).find((line) => line.length <= LINE);
    return fitting ?? counted(waiting.length, node.population ?? "workloads") + rest;
  }
  if (!known(node.score)) return known(left) ? "Warming up." : node.no_score ? "No score." : "No score yet.";
  const kind = node.population ?? "workloads";
  // By steal, or by I/O where it counts.
  if (node.score >= levels.medium) return `${kind[0].toUpperCase()}${kind.slice(1)} wait because of the node.`;
  const isUnknown = members.some((c) => known(c.scored) && !known(c.scored.contention.cpu));
  return `No ${kind.replace(/s$/, "")} ${isUnknown ? "is known to wait" : "waits"} because of the node.`;
}

// What else to know: why there is no score, who uses most above its request, which VM to move first,
// who waits because of an own limit, and whose disks wait for CPUs.
function notes({ node, agent, warm_up_left_s: left }, members, users, isContended) {
  const notes = [];
  if (node.no_score) notes.push(node.no_score);
  if (known(left)) notes.push(`The first score needs 30 s of readings: ${Math.ceil(left)} s left`);
  if (isContended && users.length > 0 && excess(users[0]) >= USES) {
    notes.push(`${short(users[0])} uses ${cpus(excess(users[0]))} CPUs ${known(users[0].cpu_request) ? "above its request" : "without a request"}`);
  }
  const named = agent?.publish.candidate, isNamed = (c) => c.namespace === named?.namespace && c.vm === named?.name;
  const best = members.find((c) => isNamed(c) && c.scored?.relief);
  if (best) notes.push(`Moving ${short(best)} now would end ${cpus(best.scored.relief.cpus)} CPUs of waiting`);
  const isLimited = (c) => ["cpu", "memory"].some((resource) => (c.scored?.waiting[resource]?.own_limit ?? 0) >= MUCH);
  const limited = members.filter(isLimited).map(short);
  if (limited.length > 0) notes.push(`${list(limited, 3)} ${limited.length > 1 ? "are" : "is"} slowed by own limits`);
  const stalled = members.filter((c) => (c.scored?.iothreads_waiting ?? 0) >= MUCH).map(short);
  if (stalled.length > 0) notes.push(`I/O threads of ${list(stalled, 3)} wait for CPUs`);
  return notes.map((note) => note + ". ").join("");
}

// Why the table is empty, and what to do about it.
function whyEmpty({ node, agent, warm_up_left_s: left }) {
  if (agent?.pods_listed === false || node.no_score || known(left)) return "Nothing is scored: see the reason at the top.";
  return "No VM, container or unit runs on this node. When one starts, it is listed here.";
}

function showScore({ node, levels, agent, warm_up_left_s: left }) {
  const level = agent?.publish.level ?? "";
  const words = known(node.score) ? `${(node.score * 100).toFixed(0)} ${level}`.trim()
    : known(left) ? "warming up" : "no score";
  const score = byId("score"), scale = byId("scale");
  score.textContent = words;
  score.className = "big " + (known(node.score) ? level : "zero");
  for (const [name, value] of [["score", node.score ?? 0], ["medium-at", levels.medium], ["high-at", levels.high]]) {
    scale.style.setProperty("--" + name, value * 100 + "%");
  }
  scale.className = "scale " + level;
  showHistory(agent?.history ?? [], levels);
}

// A line with gaps where there is no score.
function showHistory(history, levels) {
  const [medium, high, line] = byId("history").children, y = (score) => (99 - score * 98).toFixed(1);
  medium.setAttribute("d", `M0,${y(levels.medium)}h${TICKS}`);
  high.setAttribute("d", `M0,${y(levels.high)}h${TICKS}`);
  const step = (score, at) => known(score) ? `${known(history[at - 1]) ? "L" : "M"}${TICKS + 1 - history.length + at},${y(score)}h0` : "";
  line.setAttribute("d", history.map(step).join(""));
  const scores = history.filter(known), range = scores.length > 0 ? `, ${percent(Math.min(...scores))} to ${percent(Math.max(...scores))}` : "";
  byId("history").setAttribute("aria-label", `The score in the last ten minutes${range}`);
}

function showNode(snapshot, members, kind) {
  const { node, version, cgroups, node_name } = snapshot, users = usersOf(cgroups);
  byId("node-name").textContent = node_name ?? "psi-agent";
  document.title = node_name ? `${node_name} – psi-agent` : "psi-agent";
  // A screen reader reads each change, so the text changes only with the values.
  const words = sentence(snapshot, members);
  if (byId("sentence").textContent !== words) byId("sentence").textContent = byId("sentence").title = words;
  byId("notes").textContent = notes(snapshot, members, users, node.contended > 0);
  byId("version").textContent = `Version ${version}, ${counted(cgroups.length, "cgroups")}.`;
  byId("counts").textContent = `Scale 0 to 100. ${counted(members.length, kind)}${known(node.score) || members.length === 0 ? `, ${node.contended} contended` : ""}.`;
  byId("empty").hidden = members.length > 0;
  showTable("members", members.length > 0);
  showTable("users", users.length > 0);
  byId("empty").textContent = whyEmpty(snapshot);
  const hasPsi = !known(snapshot.window_s) || ["cpu", "memory", "io"].some((resource) => known(node.pressure[resource].some));
  byId("no-psi").hidden = hasPsi;
  byId("supply").textContent = `${node.cpus ?? "–"} CPUs, ${percent(node.utilization)} busy, ${percent(node.steal)} steal, headroom ${cpus(node.headroom_cpus)} CPUs. ` +
    `${bytes(node.memory_available)} of ${bytes(node.memory_total)} memory available.`;
  showScore(snapshot);
  // Where nothing is scored, pressure is all there is to see.
  if (!pressureChosen) showPressure(!known(snapshot.warm_up_left_s) && !members.some((c) => known(c.scored)));
  tile("cpu", "CPU", node);
  tile("memory", "Memory", node);
  tile("io", "I/O", node);
  showUsers(users);
}

function publishWords({ mode, last, error }) {
  const value = last ? `${last.score}, observed ${ago(last.observed_at_ms)}` : "nothing yet";
  if (mode === "off") return "off: --publish off";
  if (mode === "dry-run") return `${value}; dry run, not written`;
  return error ? `${value}; publishing fails` : value;
}

function showAges() {
  const over = (seconds) => known(seconds) ? `, over ${seconds.toFixed(1)} s` : "";
  byId("read").textContent = ago(seen.observed_at_ms);
  byId("window").textContent = "of the last reading" + over(seen.window_s);
  byId("tick").textContent = ago(seen.agent?.ticked_at_ms) + over(seen.agent?.tick_window_s);
  const pods = { true: "listed", false: "not listed yet" };
  byId("pods").textContent = pods[seen.agent?.pods_listed] ?? "no source: set --node-name or --pods-file";
  byId("scored").textContent = `${ago(seen.scored_at_ms)}, basis ${seen.basis ?? "–"}`;
  byId("published").textContent = seen.agent ? publishWords(seen.agent.publish) : "–";
}

function errorsOf(agent) {
  const errors = [], say = (what, { message, at_ms }) => errors.push(`${what} (${ago(at_ms)}): ${message}`);
  if (agent.publish.error) say("The score cannot be published", agent.publish.error);
  if (agent.pods_error) say("The pods cannot be listed", agent.pods_error);
  if (agent.pods_listed === false) errors.push("The pods of this node are not listed yet, so they have no series. If this lasts, run psi-agent check.");
  const counts = Object.entries(agent.read_errors).filter(([, count]) => count > 0);
  if (counts.length > 0) errors.push(`Read errors since the start: ${counts.map(([kind, count]) => `${count} ${kind}`).join(", ")}.`);
  if (agent.last_read_error) say("Last read error", agent.last_read_error);
  return errors;
}

function showErrors() {
  const errors = seen.agent ? errorsOf(seen.agent) : [];
  byId("errors").hidden = errors.length === 0;
  byId("errors").replaceChildren(...errors.map((text) => {
    const item = document.createElement("li");
    item.textContent = text;
    return item;
  }));
}

// Why the displayed values are out of date, and for how long; null while they are current.
function alarmNow() {
  if (failure !== null || (seen && sinceResponse() > FETCH_EVERY_MS + RESPONSE_TIMEOUT_MS)) {
    const why = failure === null ? "" : ` (${failure})`;
    return { words: `No response from the agent${why}.${seen ? " All values are old." : ""}`, ms: seen ? sinceResponse() : null };
  }
  if (known(seen?.agent?.ticked_at_ms) && ageOf(seen.agent.ticked_at_ms) > TICK_OVERDUE_MS) {
    return { words: "The agent has stopped sampling: see its log.", ms: ageOf(seen.agent.ticked_at_ms) };
  }
  return null;
}

// ---- updates ----

function everySecond() {
  if (seen) {
    showAges();
    showErrors();
  }
  for (const table of document.querySelectorAll(".scroll")) table.previousElementSibling.hidden = table.scrollWidth <= table.clientWidth;
  const alarm = alarmNow(), words = byId("alarm-words");
  byId("alarm").hidden = alarm === null;
  // A screen reader reads each change, so the text changes only with the alarm.
  if (words.textContent !== (alarm?.words ?? "")) words.textContent = alarm?.words ?? "";
  byId("alarm-age").textContent = known(alarm?.ms) ? `For ${duration(alarm.ms)}.` : "";
  for (const id of ["sentence", "notes", "main"]) byId(id).classList.toggle("old", alarm !== null);
}

function show(snapshot) {
  if (seen && seen.observed_at_ms !== snapshot.observed_at_ms) {
    before = { at: seen.observed_at_ms, used: new Map(seen.cgroups.map((c) => [c.id, c.cpu_seconds])) };
  }
  seen = snapshot;
  seenAt = performance.now();
  const [kind, members, others] = split(snapshot);
  showNode(snapshot, members, kind);
  fill("members", "members-title", kind, members, scored);
  fill("others", "others-title", "other cgroups", others, unscored);
}

async function update() {
  try {
    const response = await fetch("snapshot.json", { cache: "no-store", signal: AbortSignal.timeout(RESPONSE_TIMEOUT_MS) });
    if (!response.ok) throw new Error(`${response.status}: ${await response.text()}`);
    show(await response.json());
    failure = null;
  } catch (error) {
    failure = error.message;
  }
  everySecond();
  setTimeout(update, FETCH_EVERY_MS);
}

byId("raw").addEventListener("change", ({ target }) => {
  pressureChosen = true;
  showPressure(target.checked);
});
setInterval(everySecond, 1000);
update();
