// What moves: the part of a page that is called "live" is sent anew by the server when it changed.
"use strict";

(() => {
  const place = document.getElementById("live");
  const status = document.getElementById("live-status");
  if (!place || !window.EventSource) return;

  const say = text => { if (status.textContent !== text) status.textContent = text; };

  // A person may stand on a link, or have opened a part: both stay as they were.
  const put = html => {
    const focused = place.contains(document.activeElement) ? document.activeElement : null;
    const key = focused && (focused.id || focused.getAttribute("href"));
    const opened = new Set([...place.querySelectorAll("details[open][id]")].map(one => one.id));
    place.innerHTML = html;
    for (const one of place.querySelectorAll("details[id]")) one.open = opened.has(one.id);
    if (!key) return;
    const again = [...place.querySelectorAll("a, button, summary, [tabindex]")]
      .find(one => one.id === key || one.getAttribute("href") === key);
    if (again) again.focus({ preventScroll: true });
  };

  let source = null;
  const open = () => {
    if (source) return;
    source = new EventSource(location.href);
    source.onopen = () => say("Live");
    source.onmessage = message => put(message.data);
    source.addEventListener("over", () => { close(); location.reload(); });
    source.onerror = () => {
      say("The connection is lost; trying again …");
      if (source && source.readyState === EventSource.CLOSED) { close(); setTimeout(open, 5000); }
    };
  };
  const close = () => { if (source) source.close(); source = null; };

  document.addEventListener("visibilitychange", () => document.hidden ? close() : open());
  window.addEventListener("pagehide", close);
  open();
})();
