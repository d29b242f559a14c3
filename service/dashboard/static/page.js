// What every page does beside its content: it says when the server stops answering regions that ask for themselves.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const offline = document.getElementById("offline");
  const show = (hidden) => () => { offline.hidden = hidden; };
  for (const name of ["htmx:sendError", "htmx:timeout"]) document.body.addEventListener(name, show(false));
  document.body.addEventListener("htmx:responseError", (event) => { offline.hidden = event.detail.xhr.status < 500; });
  document.body.addEventListener("htmx:afterRequest", (event) => { if (event.detail.successful) offline.hidden = true; });
});
