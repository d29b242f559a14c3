// The public page that verifies a receipt. Everything shown is derived from signed leaves, never from the summary.
import { Report, fromHex, hasCryptography, leafHash, readCheckpoint, reportSignature, rootByInclusion, same, toHex } from "./merkle.js";

const form = document.getElementById("verify-form");
const button = document.getElementById("verify");
const file = document.getElementById("file");
const pasted = document.getElementById("pasted");
const rules = JSON.parse(form.dataset.rules);
const keys = Array.from(document.querySelectorAll("#keys code"), (code) => code.textContent);
const insecure = "This page was opened without encryption, so the browser offers it no cryptography. Open it through https.";

// RFC 8785: numbers and texts as JSON.stringify writes them, members sorted by UTF-16 code units.
function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  return `{${Object.keys(value).sort().map((name) => `${JSON.stringify(name)}:${canonical(value[name])}`).join(",")}}`;
}

function day(time) {
  const words = { day: "numeric", month: "long", year: "numeric", hour: "2-digit", minute: "2-digit", timeZone: "UTC" };
  return `${new Date(time).toLocaleString("en-GB", words)} UTC`;
}

const grouped = (hex) => hex.match(/.{8}/g).join(" ");
const unknown = (object, members) => Object.keys(object).filter((name) => !members.includes(name));

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  button.disabled = true;
  const report = new Report(document.getElementById("checks"), document.getElementById("outcome"));
  for (const id of ["result", "steps"]) document.getElementById(id).hidden = true;
  try {
    await check(report);
  } catch (error) {
    report.say("bad", `This is not a receipt of Lethe, or it was changed: ${error.message}`);
  } finally {
    button.disabled = false;
  }
});

async function check(report) {
  const text = file.files.length && !pasted.value.trim() ? await file.files[0].text() : pasted.value;
  if (!text.trim()) return report.say("warn", "Choose the receipt file first, or paste its text.");
  if (!hasCryptography()) return report.say("warn", insecure);
  const receipt = JSON.parse(text);
  document.getElementById("steps").hidden = false;
  await verify(report, receipt);
  if (report.bad) return report.say("bad", "Not genuine: this receipt was changed, or it does not come from this service.");
  show(facts(receipt));
  if (report.open) report.say("warn", "Not settled: nothing contradicts this receipt, but something could not be checked. See below.");
  else report.say("good", "Genuine: this receipt is in the signed log of this service, unchanged.");
}

async function verify(report, receipt) {
  if (receipt.format !== rules.format) throw new Error(`it is not of the form ${rules.format}.`);
  for (const name of unknown(receipt, rules.members)) report.line("bad", `It has a part that no receipt has: ${name}.`);
  if (!receipt.entries.length) throw new Error("it has no events.");
  const checkpoint = readCheckpoint(receipt.checkpoint);
  await reportSignature(report, checkpoint, keys);
  const leaves = receipt.entries.map((entry) => entry.leaf), since = receipt.since.map((entry) => entry.leaf);
  for (const entry of receipt.entries) await verifyEntry(report, entry, receipt.request_id, checkpoint);
  for (const entry of receipt.since) await verifyEntry(report, entry, null, checkpoint);
  for (const chain of [leaves, [leaves[0], ...since]]) {
    const inOrder = chain.every((leaf, at) => at === 0 || leaf.index > chain[at - 1].index);
    if (!inOrder) report.line("bad", "Its events are not in their order.");
  }
  if (since.some((leaf) => leaf.details.model !== leaves[0].request.model)) report.line("bad", "It describes what happened to another model.");
  const wrong = differences(receipt.summary, leaves, since);
  if (wrong.length) report.line("bad", `Its summary contradicts its signed events: ${wrong.join(", ")}.`);
  else report.line("good", "Its summary agrees with its signed events.");
  const fingerprint = toHex(await leafHash(canonical(leaves.at(-1))));
  const onPaper = location.hash.slice(1).toLowerCase();
  if (/^[0-9a-f]{64}$/.test(onPaper)) {
    if (onPaper === fingerprint) report.line("good", `It is the receipt on your paper: fingerprint ${grouped(fingerprint)}.`);
    else report.line("bad", "It is not the receipt on your paper: the fingerprints differ.");
  } else if (!report.bad) {
    report.line("good", `Compare this fingerprint with the one on the paper: ${grouped(fingerprint)}.`);
  }
}

async function verifyEntry(report, entry, requestId, checkpoint) {
  const { leaf } = entry;
  const name = `Event ${leaf.index} (${String(leaf.type).replaceAll("_", " ")})`;
  for (const member of unknown(entry, rules.entryMembers)) report.line("bad", `${name} has a part that no event has: ${member}.`);
  if (leaf.format !== rules.leafFormat) report.line("bad", `${name} is not of the form ${rules.leafFormat}.`);
  if (leaf.request_id !== requestId) report.line("bad", `${name} is about another request.`);
  if (overstates(leaf.details)) report.line("bad", `${name} claims retrained weights without a bound that supports it.`);
  const root = await rootByInclusion(leaf.index, checkpoint.size, await leafHash(canonical(leaf)), entry.inclusion_proof.map(fromHex));
  if (root && same(root, checkpoint.root)) report.line("good", `${name} is in the signed log.`);
  else report.line("bad", `${name} is not in the signed log: it or its proof was changed.`);
}

function overstates(details) {
  const { repair, repair_tolerance: tolerance, distance_bound_after_relative: bound } = details;
  if (repair !== "converged" || (rules.figuresCommitment in details && bound === undefined)) return false;
  return !(typeof bound === "number" && tolerance > 0 && tolerance <= rules.largestTolerance && bound <= tolerance);
}

function meanings(kind) {
  return rules.joining.includes(kind) ? rules.guaranteesOfJoins : rules.guarantees;
}

// Summarises the leaves of a request; the sentences on noise and on later events are not derived here.
function derived(leaves) {
  const { request } = leaves.at(-1);
  const times = Object.fromEntries(leaves.map((leaf) => [leaf.type, leaf.time]));
  const figures = {};
  for (const leaf of leaves) {
    for (const [name, value] of Object.entries(leaf.details)) if (value !== null || !(name in figures)) figures[name] = value;
  }
  const done = leaves.findLast((leaf) => ["applied", "completed", "failed"].includes(leaf.type)) ?? leaves.at(-1);
  let words = request.guarantee === null ? null : meanings(request.kind)[request.guarantee][0];
  if (!words && done.type === "completed") words = rules.nothingLeft[request.already_deleted_by ? 0 : 1];
  const said = {
    model: request.model, kind: request.kind, count: request.count, received_at: request.received_at,
    applied_at: times.applied ?? null, repaired_at: times.repaired ?? null, not_repaired_at: times.not_repaired ?? null,
    completed_at: times.completed ?? null, status: done.type, what_was_done: request.explanation,
    already_deleted_by: request.already_deleted_by, guarantee: request.guarantee, guarantee_in_words: words,
    repair: request.repair,
  };
  for (const name of ["model_version_before", "model_version_after", "weights_sha256_before", "weights_sha256_after", "repair_version", "repair_weights_sha256"]) {
    said[name] = figures[name] ?? null;
  }
  if (done.type === "failed") {
    Object.assign(said, { failed_at: leaves.findLast((leaf) => leaf.type === "failed").time, failure: request.failure, handled_at: null, handled_by: null, note: null });
    for (const leaf of leaves.filter(({ type }) => type === "handled")) {
      Object.assign(said, { handled_at: leaf.time, handled_by: leaf.details.deleted_by?.[0] ?? null, note: leaf.details.reason ?? null });
    }
  }
  const holds = [];
  for (const { type, details } of leaves) {
    if (type === "held") holds.push({ from: details.decided_at, until: null, reason: details.reason });
    else if (type === "released") holds.at(-1).until = details.decided_at;
  }
  if (holds.length) said.held = holds;
  return { said, figures };
}

// Returns the members of a summary that contradict the leaves.
function differences(summary, leaves, since) {
  const { said, figures } = derived(leaves);
  const wrong = Object.keys(said).filter((name) => canonical(said[name]) !== canonical(summary[name] ?? null));
  const more = ["figures", "since", ...(figures.publication_mu == null ? [] : ["noise_in_words"])];
  wrong.push(...unknown(summary, [...Object.keys(said), ...more]));
  for (const [name, value] of Object.entries(summary.figures)) if (value === null || canonical(value) !== canonical(figures[name] ?? null)) wrong.push(name);
  const listed = summary.since.map((event) => event.time), happened = since.map((leaf) => leaf.time);
  if (canonical(listed) !== canonical(happened)) wrong.push("since");
  return wrong;
}

function facts(receipt) {
  const leaves = receipt.entries.map((entry) => entry.leaf);
  const { said } = derived(leaves);
  const [one, several] = rules.kinds[said.kind];
  const found = [
    ["Asked for", day(said.received_at)],
    [rules.joining.includes(said.kind) ? "To take in" : "To delete", said.count === 1 ? one : several.replace("{count}", said.count.toLocaleString("en-GB"))],
  ];
  for (const hold of said.held ?? []) found.push(["On hold", `${day(hold.from)} to ${hold.until ? day(hold.until) : "now"}: ${hold.reason}`]);
  if (said.status === "failed") {
    found.push(["Failed", `${day(said.failed_at)}. Nothing was deleted for this request.`], ["Reason", said.failure]);
    found.push(["Settled", said.handled_at ? day(said.handled_at) : "not yet"]);
  } else {
    const place = rules.joining.includes(said.kind) ? "In predictions" : "Out of every prediction";
    if (said.applied_at) found.push([place, `since ${day(said.applied_at)}`]);
    if (!rules.joining.includes(said.kind)) found.push(["Erased from the disk", said.completed_at ? day(said.completed_at) : "not yet"]);
    found.push(["The model", said.guarantee ? meanings(said.kind)[said.guarantee][1] : said.guarantee_in_words]);
  }
  if (receipt.since.length) found.push(["Since then", receipt.since.map(({ leaf }) => `${leaf.type.replaceAll("_", " ")}, ${day(leaf.time)}`).join("; ")]);
  return [...found, ["Request", receipt.request_id]];
}

function show(rows) {
  const list = document.getElementById("facts");
  list.replaceChildren(...rows.flatMap(([name, text]) => {
    const term = document.createElement("dt"), value = document.createElement("dd");
    term.textContent = name;
    value.textContent = text;
    return [term, value];
  }));
  document.getElementById("result").hidden = false;
}

button.disabled = false;
