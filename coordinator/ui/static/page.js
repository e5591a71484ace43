"use strict";
// Keeps a page up to date, shows times in the reader's time zone, and opens the dialogs of actions.
// All tabs of a browser share one event stream, because browsers open only six connections to a host: the tab that holds the lock
// "sluice-events" reads it for all, and passes the events on by a BroadcastChannel.
(() => {
  const body = document.body;
  const root = body.dataset.root;
  const key = body.dataset.page;
  const epoch = body.dataset.epoch;
  const dialog = document.getElementById("dialog");
  const status = document.getElementById("connection");
  let version = Number(body.dataset.version);

  // --- times ---
  const clock = new Intl.DateTimeFormat(undefined, {dateStyle: "short", timeStyle: "medium"});
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

  function age(seconds) {
    const [length, unit] = units.find(([length]) => Math.abs(seconds) >= length) || [1, "s"];
    const number = Math.floor(Math.abs(seconds) / length);
    return seconds < 0 ? `in ${number} ${unit}` : `${number} ${unit} ago`;
  }

  function showTimes() {
    const now = Date.now();
    for (const element of document.querySelectorAll("time[datetime]")) {
      const at = new Date(element.dateTime);
      const text = `${clock.format(at)} (${age((now - at) / 1000)})`;
      if (element.textContent !== text) {
        element.textContent = text;
        element.title = `${at.toISOString().replace("T", " ").slice(0, 19)} UTC`;
      }
    }
  }

  // --- events ---
  // The button of an action in `scope`; its subject may have changed meanwhile, such as the number of containers.
  function buttonOf(address, scope) {
    const action = address.split("?")[0];
    return scope.querySelector(`[data-action="${CSS.escape(address)}"]`) || scope.querySelector(`[data-action^="${CSS.escape(action)}?"]`);
  }

  // The same element in a new version of its fragment.
  function again(element, scope) {
    if (element.dataset.action) return buttonOf(element.dataset.action, scope);
    for (const name of ["href", "aria-label"])
      if (element.hasAttribute(name)) return scope.querySelector(`[${name}="${CSS.escape(element.getAttribute(name))}"]`);
    if (element.tagName === "SUMMARY") return scope.querySelector(`#${CSS.escape(element.parentElement.id)} > summary`);
    return element.tagName === "BUTTON" ? scope.querySelector("form.pager button") : null;
  }

  function apply(data) {
    if (data.page !== key) return;
    for (const [id, html] of Object.entries(data.pieces)) {
      const element = document.getElementById(id);
      if (!element) continue;
      const open = [...element.querySelectorAll("details[open]")].map((each) => each.id);
      const focused = element.contains(document.activeElement) ? document.activeElement : null;
      if (focused && ["INPUT", "SELECT"].includes(focused.tagName)) continue;  // do not replace a field with focus
      element.outerHTML = html;  // the coordinator escapes all text in it
      for (const each of open) document.getElementById(each)?.setAttribute("open", "");
      const fragment = document.getElementById(id);
      if (focused && fragment) again(focused, fragment)?.focus({preventScroll: true});
    }
    version = data.version;
    showTimes();
  }

  const channel = "BroadcastChannel" in window ? new BroadcastChannel(`sluice ${new URL(root, location).pathname}`) : null;
  const tab = Math.random().toString(36).slice(2);
  const tabs = new Map([[tab, {key, version, epoch, seen: Date.now()}]]);
  let source = null;
  let address = "";

  function setStatus(text) {
    if (status.textContent !== text) status.textContent = text;
  }

  function connect() {
    const pages = new Map();
    for (const each of tabs.values()) {
      const known = pages.get(each.key);
      if (!known || each.version < known.version) pages.set(each.key, each);
    }
    const query = new URLSearchParams({epoch});
    for (const [page, each] of pages) {
      query.append("page", page);
      query.append("version", each.epoch === epoch ? each.version : 0);
    }
    const wanted = [...pages.keys()].sort().join("\n");
    if (source && wanted === address && source.readyState !== EventSource.CLOSED) return;
    source?.close();
    address = wanted;
    source = new EventSource(`${root}events?${query}`);
    source.onopen = () => { setStatus("live"); channel?.postMessage({live: true}); };
    source.onerror = () => {
      setStatus("not live: the coordinator does not answer; retrying");
      channel?.postMessage({live: false});
      if (source.readyState === EventSource.CLOSED) setTimeout(connect, 3000);
    };
    source.onmessage = (message) => {
      const data = JSON.parse(message.data);
      for (const each of tabs.values()) if (each.key === data.page) { each.version = data.version; each.epoch = data.epoch; }
      apply(data);
      channel?.postMessage({data});
    };
  }

  function announce() {
    tabs.get(tab).seen = Date.now();
    channel?.postMessage({tab, key, version, epoch});
  }

  if (channel) {
    let leader = false;
    channel.onmessage = ({data: message}) => {
      if (message.data) { apply(message.data); setStatus("live"); }
      if ("live" in message && !leader) setStatus(message.live ? "live" : "not live: the coordinator does not answer; retrying");
      if (message.gone) tabs.delete(message.gone);
      if (message.tab) tabs.set(message.tab, {...message, seen: Date.now()});
      if (message.asked) announce();
      if (leader) { connect(); if (message.tab && source.readyState === EventSource.OPEN) channel.postMessage({live: true}); }
    };
    navigator.locks.request("sluice-events " + new URL(root, location).pathname, () => new Promise(() => {
      leader = true;
      channel.postMessage({asked: true});
      connect();
    }));
    announce();
    addEventListener("pagehide", () => channel.postMessage({gone: tab}));
    setInterval(() => {
      announce();
      for (const [each, {seen}] of tabs) if (Date.now() - seen > 90000) tabs.delete(each);
      if (leader) connect();
    }, 20000);
  } else {
    connect();
  }

  // --- actions ---
  async function show(address, options) {
    try {
      const answer = await fetch(root + address, options);
      dialog.innerHTML = answer.headers.get("Content-Type")?.startsWith("text/html") ? await answer.text() : "";
      if (!dialog.innerHTML) dialog.textContent = `The coordinator answered ${answer.status}.`;
    } catch {
      dialog.textContent = "The coordinator does not answer. The request may have been executed: check before you try again.";
    }
    for (const each of dialog.querySelectorAll("[data-link]")) each.href = root + each.dataset.link;
    if (!dialog.open) dialog.showModal();
    dialog.querySelector("h2")?.focus();  // a screen reader reads the new contents
  }

  function replan(form) {
    show(`${form.dataset.perform}?${new URLSearchParams(new FormData(form))}`);
  }

  let opener = "";
  dialog.addEventListener("close", () => {
    // The button may have been replaced or removed meanwhile.
    (buttonOf(opener, document) || document.getElementById("content")).focus({preventScroll: true});
  });

  async function copy(element, button) {
    try {
      await navigator.clipboard.writeText(element.textContent);
      button.textContent = "Copied";
    } catch {  // browsers have a clipboard only for pages of this machine and for TLS
      getSelection().selectAllChildren(element);
      button.textContent = "Selected: copy it with the keyboard";
    }
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-action], [data-replan], [data-copy]");
    if (!button) return;
    if (button.dataset.action) show(opener = button.dataset.action);
    else if ("replan" in button.dataset) replan(button.form);
    else copy(document.getElementById(button.dataset.copy), button);
  });

  document.addEventListener("submit", (event) => {
    const address = event.target.dataset.perform;
    if (!address) return;
    event.preventDefault();
    if (event.target.dataset.changed) replan(event.target);  // show the plan for the new values first
    else show(address, {method: "POST", body: new URLSearchParams(new FormData(event.target))});
  });

  document.addEventListener("input", (event) => {
    if (event.target.form?.dataset.perform) event.target.form.dataset.changed = "yes";
  });

  showTimes();
  setInterval(showTimes, 1000);
})();
