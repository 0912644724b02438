// Elements. Whatever people or models have written becomes text, never markup.

/** An element with attributes and children; a string becomes a text node. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "onclick") made.addEventListener("click", value);
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

/** How long ago, for people. */
export function age(time) {
  return duration((Date.now() - new Date(time).getTime()) / 1000);
}

/** A number of seconds, for people. */
export function duration(seconds) {
  const most = Math.max(0, seconds);
  if (most < 1) return `${Math.round(most * 1000)} ms`;
  if (most < 90) return `${most < 10 ? most.toFixed(1) : Math.round(most)} s`;
  if (most < 5400) return `${Math.round(most / 60)} min`;
  if (most < 129600) return `${Math.round(most / 3600)} h`;
  return `${Math.round(most / 86400)} days`;
}

/** Say something in the line that screen readers read out. */
export function notify(text, bad = false) {
  const notice = document.getElementById("notice");
  notice.textContent = text;
  notice.classList.toggle("bad", bad);
}

/** Ask before something can't be undone; resolves to whether to go on. */
export function confirmed(question) {
  const dialog = document.getElementById("confirm");
  document.getElementById("question").textContent = question;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}
