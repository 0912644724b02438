// Which view is shown, and of which conversation.

import { Chat } from "./chat.js";
import { notify } from "./dom.js";
import { Memory } from "./memory.js";
import { Operations } from "./operations.js";

const CONVERSATION = "conversation";
const views = { chat: new Chat(), memory: new Memory(), operations: new Operations() };
const named = document.getElementById("conversation");
let shown = null;

named.value = localStorage.getItem(CONVERSATION) ?? "first";

function show() {
  const wanted = location.hash.slice(2);
  const name = wanted in views ? wanted : "chat";
  shown?.close();
  shown = views[name];
  notify("");
  for (const view of Object.keys(views)) document.getElementById(view).hidden = view !== name;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#/${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.getElementById("open").hidden = name === "operations";
  document.title = `memory-tasks: ${name}`;
  shown.open(named.value);
}

document.getElementById("open").addEventListener("submit", (event) => {
  event.preventDefault();
  localStorage.setItem(CONVERSATION, named.value);
  show();
});
addEventListener("hashchange", show);
show();
