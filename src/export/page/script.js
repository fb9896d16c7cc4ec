"use strict";
// Names of pods and VMs are untrusted: everything is displayed by textContent.

const FETCH_EVERY_MS = 5000;
// An agent responds within 10 s, also if the kernel's files are slow to read.
const RESPONSE_TIMEOUT_MS = 12000;
// Six ticks, as for the agent's /livez.
const TICK_OVERDUE_MS = 30000;
const MOST_ROWS = 200;
const MOST_USERS = 8;
// CPUs that a cgroup must use to be listed as a CPU user.
const USES = 0.01;
// Share of time from which a VM counts as slowed down by its own limits.
const MUCH = 0.1;

const byId = (id) => document.getElementById(id);
const known = (value) => value !== null && value !== undefined;

// The last snapshot, its arrival on this browser's clock, the snapshot before, and the last error.
let seen = null, seenAt = 0, before = null, failure = null;

// ---- numbers ----

function percent(share) {
  if (!known(share)) return "–";
  return (share * 100).toFixed(share > 0 && share < 0.0995 ? 1 : 0) + "\u00a0%";
}

function bytes(count) {
  if (!known(count)) return "–";
  if (count === "max") return "none";
  const [unit, size] = count < 2 ** 20 ? ["KiB", 2 ** 10] : count < 2 ** 30 ? ["MiB", 2 ** 20] : ["GiB", 2 ** 30];
  return (count / size).toFixed(unit === "GiB" ? 1 : 0) + "\u00a0" + unit;
}

function cpus(count) {
  if (!known(count)) return "–";
  return count === "max" ? "none" : count.toFixed(count > 0 && count < 0.1 ? 3 : 2);
}

function duration(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 120) return seconds + " s";
  return seconds < 7200 ? Math.floor(seconds / 60) + " min" : Math.floor(seconds / 3600) + " h";
}

// Ages are relative to the agent's clock, since the browser's may be wrong.
const sinceResponse = () => performance.now() - seenAt;
const ageOf = (atMs) => seen.observed_at_ms + sinceResponse() - atMs;
const ago = (atMs) => known(atMs) ? duration(ageOf(atMs)) + " ago" : "not yet";

function nameOf(c) {
  if (c.is_vm) return `${c.namespace}/${c.vm}${c.awaits_handover ? " (arriving)" : ""}`;
  if (c.pod) return `${c.namespace}/${c.pod}${c.container ? "/" + c.container : ""}`;
  return c.id;
}

// ---- tables ----

// A cell with a share and a bar of this kind. Other cells are strings.
const share = (kind, value) => ({ kind, value });

function row(c, groups) {
  const line = document.createElement("tr"), name = document.createElement("th");
  name.scope = "row";
  name.textContent = nameOf(c);
  name.title = c.id;
  line.append(name);
  for (const group of groups) {
    group.forEach((cell, at) => {
      const box = line.insertCell();
      if (at === 0) box.classList.add("first");
      if (typeof cell === "string") {
        box.textContent = cell;
        return;
      }
      box.textContent = percent(cell.value);
      box.classList.add("share", cell.kind);
      box.style.setProperty("--share", (cell.value ?? 0) * 100 + "%");
    });
  }
  return line;
}

const contention = (c) => c.scored ? Math.max(c.scored.contention.cpu ?? -1, c.scored.contention.memory ?? -1) : -1;
const waited = (c) => Math.max(...["cpu", "memory", "io"].map((resource) => c.pressure[resource].some ?? -1));
const byContention = (a, b) => contention(b) - contention(a) || waited(b) - waited(a) || (a.id < b.id ? -1 : 1);

// A tick has the CPU use of scored containers only. Others are computed from the counters.
function used(c) {
  if (known(c.scored?.usage)) return c.scored.usage;
  const then = before?.used.get(c.id), passed = seen.observed_at_ms - (before?.at ?? 0);
  return known(then) && known(c.cpu_seconds) && passed > 0 && c.cpu_seconds >= then ? (c.cpu_seconds - then) / (passed / 1000) : null;
}

function pressures(c) {
  // Of scored containers the last tick's, since own limits are of that window.
  const { cpu, memory, io } = c.scored?.pressure ?? c.pressure;
  return [share("raw", cpu.some), share("raw", cpu.full), share("raw", memory.some), share("raw", io.some)];
}

function usage(c) {
  const throttled = known(c.throttled_seconds) ? c.throttled_seconds.toFixed(1) + " s" : "–";
  return [[cpus(used(c)), cpus(c.cpu_limit), throttled], [bytes(c.memory_bytes), bytes(c.memory_max)]];
}

function scored(c) {
  const { cpu, memory, io } = c.scored?.contention ?? {};
  const own = (resource) => share("own", c.scored?.waiting[resource]?.own_limit);
  return [[share("node", cpu), share("node", memory), share("node", io)], pressures(c), [own("cpu"), own("memory")], ...usage(c)];
}

// CPUs used beyond the request; all of them without a known request.
const excess = (c) => Math.max(0, used(c) - (c.cpu_request ?? 0));

function showUsers(cgroups) {
  const users = cgroups.filter((c) => c.is_user && (used(c) ?? 0) >= USES);
  users.sort((a, b) => excess(b) - excess(a) || used(b) - used(a) || (a.id < b.id ? -1 : 1));
  const cells = (c) => [[cpus(excess(c)), cpus(used(c)), cpus(c.cpu_request)], [share("raw", (c.scored?.pressure ?? c.pressure).cpu.some)]];
  byId("users").replaceChildren(...users.slice(0, MOST_USERS).map((c) => row(c, cells(c))));
}

// The VMs; on nodes without VMs the containers, and without containers all cgroups.
function split(cgroups) {
  const below = cgroups.filter((c) => c.level !== "root").sort(byContention);
  for (const [title, isIt] of [["VMs", (c) => c.is_vm], ["Containers", (c) => c.level === "container"]]) {
    if (below.some(isIt)) return [title, below.filter(isIt), below.filter((c) => !isIt(c))];
  }
  return ["Cgroups", below, []];
}

function fill(id, titleId, title, cgroups, cells) {
  const more = cgroups.length > MOST_ROWS ? `, first ${MOST_ROWS}` : "";
  byId(titleId).textContent = `${title} (${cgroups.length}${more})`;
  byId(id).replaceChildren(...cgroups.slice(0, MOST_ROWS).map((c) => row(c, cells(c))));
}

// ---- the node and the agent ----

function tile(resource, title, node) {
  const line = (kind, text) => {
    const words = document.createElement("p");
    words.className = kind;
    words.textContent = text;
    return words;
  };
  const bar = (kind, value) => {
    const box = document.createElement("div");
    box.className = "bar " + kind;
    box.style.setProperty("--share", (value ?? 0) * 100 + "%");
    return box;
  };
  const heading = document.createElement("h2"), raw = node.pressure[resource];
  heading.textContent = title;
  byId(resource).replaceChildren(heading, line("big", percent(node.contention[resource])), line("quiet", "contention"),
    bar("node", node.contention[resource]), line("", `pressure: ${percent(raw.some)} some, ${percent(raw.full)} full`), bar("raw", raw.some));
}

function showNode({ node, version, cgroups }, vms, kind) {
  byId("about").textContent = `Version ${version}. ${cgroups.length} cgroups.`;
  byId("score").textContent = known(node.score) ? (node.score * 100).toFixed(0) : "–";
  const byOwn = vms.filter((c) => ["cpu", "memory"].some((resource) => (c.scored?.waiting[resource]?.own_limit ?? 0) >= MUCH));
  byId("counts").textContent = `${vms.length} ${kind}: ${node.vms_contended} contended, ${byOwn.length} slowed by own limits`;
  byId("supply").textContent = `${node.cpus ?? "–"} CPUs, ${percent(node.utilization)} busy, ${percent(node.steal)} steal. ` +
    `${bytes(node.memory_available)} of ${bytes(node.memory_total)} memory available.`;
  tile("cpu", "CPU", node);
  tile("memory", "Memory", node);
  tile("io", "I/O", node);
}

function publishWords({ mode, last, error }) {
  const level = last?.level ? `, ${last.level}` : "";
  const value = last ? `${last.score}${level}, observed ${ago(last.observed_at_ms)}` : "nothing yet";
  if (mode === "off") return "off: --publish off";
  if (mode === "dry-run") return `${value}; dry run, not written`;
  return error ? `${value}; publishing fails` : value;
}

function showAges() {
  const over = (seconds) => known(seconds) ? `, over ${seconds.toFixed(1)} s` : "";
  byId("read").textContent = ago(seen.observed_at_ms) + over(seen.window_s);
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
  if (agent.pods_listed === false) errors.push("The pods of this node are not listed yet, so they have no series.");
  const counts = Object.entries(agent.read_errors).filter(([, count]) => count > 0);
  if (counts.length > 0) errors.push(`Read errors since the start: ${counts.map(([kind, count]) => `${count} ${kind}`).join(", ")}.`);
  if (agent.last_read_error) say("Last read error", agent.last_read_error);
  return errors.length > 0 ? errors : ["None."];
}

function showErrors() {
  const line = (text) => {
    const item = document.createElement("li");
    item.textContent = text;
    return item;
  };
  byId("errors").replaceChildren(...(seen.agent ? errorsOf(seen.agent) : []).map(line));
}

// Why the displayed values are out of date, and for how long; null while they are current.
function alarmNow() {
  if (failure !== null || (seen && sinceResponse() > FETCH_EVERY_MS + RESPONSE_TIMEOUT_MS)) {
    const why = failure === null ? "" : ` (${failure})`;
    return { words: `No response from the agent${why}.${seen ? " The values below are old." : ""}`, ms: seen ? sinceResponse() : null };
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
  const alarm = alarmNow(), words = byId("alarm-words");
  byId("alarm").hidden = alarm === null;
  // A screen reader reads each change, so the text changes only with the alarm.
  if (words.textContent !== (alarm?.words ?? "")) words.textContent = alarm?.words ?? "";
  byId("alarm-age").textContent = known(alarm?.ms) ? `For ${duration(alarm.ms)}.` : "";
  byId("main").classList.toggle("old", alarm !== null);
}

function show(snapshot) {
  if (seen && seen.observed_at_ms !== snapshot.observed_at_ms) {
    before = { at: seen.observed_at_ms, used: new Map(seen.cgroups.map((c) => [c.id, c.cpu_seconds])) };
  }
  seen = snapshot;
  seenAt = performance.now();
  const [title, vms, others] = split(snapshot.cgroups);
  showNode(snapshot, vms, title);
  fill("vms", "vms-title", title, vms, scored);
  showUsers(snapshot.cgroups);
  fill("others", "others-title", "Other cgroups", others, (c) => [pressures(c), ...usage(c)]);
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

setInterval(everySecond, 1000);
update();
