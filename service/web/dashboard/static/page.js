// Shared by all pages: `/` focuses the search, and a notice appears when the server stops answering.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const offline = document.getElementById("offline");
  const show = (hidden) => () => { offline.hidden = hidden; };
  for (const name of ["htmx:sendError", "htmx:timeout"]) document.body.addEventListener(name, show(false));
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, select, textarea, [contenteditable]")) return;
    const search = document.querySelector("[aria-keyshortcuts='/']");
    if (!search) return;
    event.preventDefault();
    search.focus();
  });
  // Show one explanation at a time, and close it on a click elsewhere.
  document.addEventListener("click", (event) => {
    for (const open of document.querySelectorAll("details.info[open]")) if (!open.contains(event.target)) open.open = false;
  });
  document.body.addEventListener("htmx:responseError", (event) => { offline.hidden = event.detail.xhr.status < 500; });
  document.body.addEventListener("htmx:afterRequest", (event) => { if (event.detail.successful) offline.hidden = true; });
});
