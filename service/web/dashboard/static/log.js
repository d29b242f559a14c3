// The log page: checks the checkpoint's signature, and that the log extends an earlier checkpoint.
import { Report, fromHex, hasCryptography, insecure, isConsistent, readCheckpoint, reportSignature, same, toHex } from "./merkle.js";

const page = document.getElementById("log-tools");
const note = document.getElementById("note").textContent;
const keys = Array.from(document.querySelectorAll("#keys code"), (code) => code.textContent);
const kept = document.getElementById("kept");

function run(name, work) {
  const button = document.getElementById(name);
  const outcome = document.getElementById(`${name}-outcome`);
  const checks = document.getElementById(`${name}-checks`);
  return async (event) => {
    event.preventDefault();
    button.disabled = true;
    const report = new Report(checks, outcome);
    try {
      if (hasCryptography()) await work(report);
      else report.say("warn", insecure);
    } catch (error) {
      report.say("bad", error.message);
    } finally {
      button.disabled = false;
    }
  };
}

document.getElementById("check").addEventListener("click", run("check", async (report) => {
  await reportSignature(report, readCheckpoint(note), keys);
  if (report.bad) report.say("bad", "The checkpoint does not hold.");
  else if (!report.open) report.say("good", "The signature of this checkpoint is good.");
}));

// Checks that the log as signed now begins with `earlier`, and reports a success to the server for others to see.
async function compare(report, earlier) {
  const newest = readCheckpoint(note);
  await reportSignature(report, newest, keys);
  const older = 0 < earlier.size && earlier.size < newest.size;
  if (earlier.size > newest.size) report.line("bad", `The log had ${earlier.size} leaves then and has ${newest.size} now: it was cut.`);
  else if (earlier.size === 0) report.line("warn", "The log was empty then, so anything may follow.");
  else if (earlier.size === newest.size && same(earlier.root, newest.root)) report.line("warn", `Both checkpoints have ${newest.size} leaves: the log was compared with itself.`);
  else {
    const answer = await fetch(`${page.dataset.consistency}?from=${earlier.size}&to=${newest.size}`);
    if (!answer.ok || answer.redirected) throw new Error(`The server answered ${answer.status}; load the page again.`);
    const { proof } = await answer.json();
    const holds = await isConsistent(earlier.size, newest.size, earlier.root, newest.root, proof.map(fromHex));
    if (holds) report.line("good", `The first ${earlier.size} of ${newest.size} leaves are unchanged since, by a proof of ${proof.length} hashes.`);
    else report.line("bad", `The first ${earlier.size} leaves are not what they were when that checkpoint was signed.`);
  }
  const settled = !report.bad && !report.open;
  // Report before showing the verdict: a user may leave the page as soon as it appears.
  const denied = settled && (await denies(report, newest, earlier));
  if (denied) report.say("bad", "This log contradicts a checkpoint that it has signed. Keep both, and have the log examined.");
  else if (report.bad) report.say("bad", "This log contradicts the checkpoint you kept. Keep both, and have the log examined.");
  else if (!older) report.say("warn", "This proves nothing yet. Keep this checkpoint, and compare it once the log has grown.");
  else if (settled) report.say("good", "This log only grew since the checkpoint you kept.");
  else report.say("warn", "This log only grew since the checkpoint you kept; who signed it is left open above.");
}

// Reports the check to the server. Returns whether the server denies a checkpoint that it has signed.
async function denies(report, { size, root }, against) {
  const body = new URLSearchParams({
    form_token: page.dataset.token, size, root: toHex(root), against_size: against.size, against_root: toHex(against.root),
  });
  const answer = await fetch(page.dataset.checks, { method: "POST", body });
  const denied = answer.status === 409;
  if (denied) report.line("bad", `The server denies the checkpoint of ${size} leaves that it has signed: its log was changed or cut since.`);
  else if (!answer.ok || answer.redirected) report.line("warn", `Your check was not recorded: the server answered ${answer.status}.`);
  return denied;
}

document.getElementById("compare-form").addEventListener("submit", run("compare", async (report) => {
  const earlier = readCheckpoint(kept.value.replaceAll("\r\n", "\n").replace(/\s*$/, "\n"));
  await reportSignature(report, earlier, keys);
  const { origin } = readCheckpoint(note);
  if (earlier.origin !== origin) report.line("bad", `It belongs to another log: ${earlier.origin}.`);
  await compare(report, earlier);
}));

for (const name of ["check", "compare"]) document.getElementById(name).disabled = false;

// The code on a printed report leads here with the size and root of its checkpoint.
const paper = new URLSearchParams(location.search);
if (/^[0-9a-f]{64}$/.test(paper.get("root") ?? "") && /^[0-9]{1,16}$/.test(paper.get("size") ?? "")) {
  const earlier = { size: Number(paper.get("size")), root: fromHex(paper.get("root")) };
  run("compare", (report) => compare(report, earlier))(new Event("load"));
}
