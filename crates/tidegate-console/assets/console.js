// Refreshes the live part of a page. Without this script, a reload does the same.
"use strict";
(() => {
  const live = document.querySelector("[data-live]");
  if (!live) return;
  const status = document.getElementById("live-status");
  const button = document.getElementById("live-pause");
  const everyMs = 5000;
  let paused = false;
  let busy = false;

  // Announced only when it changes, so that a screen reader is not interrupted every 5 s. Visible while the figures are stale.
  const say = (text, stale) => {
    if (status && status.textContent !== text) status.textContent = text;
    if (status) status.className = stale ? "notice bad" : "visually-hidden";
    live.classList.toggle("stale", stale);
  };

  const refresh = async () => {
    if (paused || busy || document.hidden) return;
    busy = true;
    try {
      const response = await fetch(live.dataset.live, {
        // A poll does not count as a use of the session, which ends when its user has left.
        headers: { accept: "text/html", "x-tidegate-poll": "1" }, redirect: "manual", signal: AbortSignal.timeout(everyMs),
      });
      // The session has ended: the page itself leads to the login.
      if (response.type === "opaqueredirect" || response.status === 401 || response.status === 403) {
        location.reload();
        return;
      }
      if (!response.ok) throw new Error("status " + response.status);
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      const fresh = page.querySelector("[data-summary]");
      if (!fresh) throw new Error("not a fragment");
      // Keeps the focus and the open details.
      const focused = live.contains(document.activeElement) ? document.activeElement.id : "";
      const open = [...live.querySelectorAll("details[open][id]")].map((element) => element.id);
      const scrolled = [...live.querySelectorAll(".scroll[id]")].map((element) => [element.id, element.scrollLeft]);
      live.replaceChildren(...page.body.childNodes);
      for (const id of open) document.getElementById(id)?.setAttribute("open", "");
      for (const [id, left] of scrolled) {
        const element = document.getElementById(id);
        if (element) element.scrollLeft = left;
      }
      if (focused) document.getElementById(focused)?.focus();
      say(fresh.dataset.summary, false);
    } catch {
      say("No answer from this process: the figures are not current.", true);
    } finally {
      busy = false;
    }
  };

  if (button) {
    button.hidden = false;
    button.addEventListener("click", () => {
      paused = !paused;
      button.setAttribute("aria-pressed", String(paused));
      button.textContent = paused ? "Resume updates" : "Pause updates";
      refresh();
    });
  }
  document.addEventListener("visibilitychange", refresh);
  setInterval(refresh, everyMs);
})();
