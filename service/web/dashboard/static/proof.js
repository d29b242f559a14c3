// The page of a request: "Verify in this browser".
import { Report, fromHex, hasCryptography, insecure, leafHash, readCheckpoint, reportSignature, rootByInclusion, same, toHex } from "./merkle.js";

const section = document.getElementById("evidence");
const button = document.getElementById("verify");
const requestId = section.dataset.proof.split("/").at(-2);

button.addEventListener("click", async () => {
  button.disabled = true;
  const report = new Report(document.getElementById("checks"), document.getElementById("outcome"));
  try {
    if (hasCryptography()) await verify(report);
    else report.say("warn", insecure);
  } catch (error) {
    report.say("bad", `The evidence could not be checked: ${error.message}`);
  } finally {
    button.disabled = false;
  }
});

button.disabled = false;

async function verify(report) {
  const answer = await fetch(section.dataset.proof);
  if (!answer.ok || answer.redirected) throw new Error(`the server answered ${answer.status}; load the page again.`);
  const evidence = await answer.json();
  if (!evidence.leaves.length) {
    report.say("warn", evidence.waiting ? "The events of this request are not signed yet. Try again in a moment." : "Nothing has been recorded in the log yet.");
    return;
  }
  const checkpoint = readCheckpoint(evidence.checkpoint);
  report.line("good", `The checkpoint is of log ${checkpoint.origin}: ${checkpoint.size} leaves, root ${toHex(checkpoint.root).slice(0, 16)}…`);
  for (const leaf of evidence.leaves) await verifyLeaf(report, leaf, checkpoint);
  await reportSignature(report, checkpoint, evidence.keys);
  if (evidence.waiting) report.line("warn", "The newest event of this request is not signed yet.");
  show(evidence.leaves);
  if (report.bad) report.say("bad", "The evidence does not hold. Keep this page, and have the log examined.");
  else if (report.open) report.say("warn", "Nothing contradicts the evidence, but something above could not be checked.");
  else report.say("good", `Verified: ${evidence.leaves.length === 1 ? "the event" : `all ${evidence.leaves.length} events`} of this request ${evidence.leaves.length === 1 ? "is" : "are"} in the signed log.`);
}

async function verifyLeaf(report, leaf, checkpoint) {
  const document_ = JSON.parse(leaf.data);
  const name = `Leaf ${leaf.index} (${document_.type})`;
  if (document_.request_id !== requestId || document_.index !== leaf.index) {
    report.line("bad", `${name} is about another request or place.`);
    return;
  }
  const root = await rootByInclusion(leaf.index, checkpoint.size, await leafHash(leaf.data), leaf.proof.map(fromHex));
  if (root && same(root, checkpoint.root)) {
    report.line("good", `${name} leads to the signed root by a proof of ${leaf.proof.length} hashes.`);
  } else {
    report.line("bad", `${name} does not lead to the signed root: it was changed, or never was in this log.`);
  }
}

function show(leaves) {
  const blocks = leaves.map((leaf) => {
    const details = document.createElement("details");
    const summary = document.createElement("summary");
    summary.textContent = `Leaf ${leaf.index} in full`;
    const text = document.createElement("pre");
    text.textContent = JSON.stringify(JSON.parse(leaf.data), null, 2);
    text.tabIndex = 0;
    details.append(summary, text);
    return details;
  });
  document.getElementById("leaves").replaceChildren(...blocks);
}
