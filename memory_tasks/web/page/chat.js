// Chat: messages are sent one after the other, and answers watched one after the other, as a conversation goes on.

import { Refused, address, pause, request } from "./api.js";
import { age, element, notify } from "./dom.js";

const ENDED = ["persisted", "promoted", "failed"];
const STATES = {
  sending: "sending",
  accepted: "waiting",
  recalled: "answering",
  completed: "saving",
  persisted: "saved",
  promoted: "in long-term memory",
};
const REFRESH_MS = 3000;
const OUTBOX = "outbox";

const log = document.getElementById("turns");
const form = document.getElementById("say");
const text = document.getElementById("text");
const remember = document.getElementById("remember");

/** Whether the reader is at the end, where new text should be followed. */
function isAtEnd() {
  return log.scrollHeight - log.scrollTop - log.clientHeight < 80;
}

/** One turn on the page. */
class Turn {
  constructor(conversation, found) {
    const { turn_id, user_message, assistant_message = "", state, created_at, remember } = found;
    this.conversation = conversation;
    this.id = turn_id;
    this.at = created_at;
    this.last = "";
    this.call = 0;
    this.hasMemories = false;
    this.missing = 0;
    this.answer = element("p", { class: "answer" });
    this.answer.textContent = assistant_message ?? "";
    this.badge = element("span", { class: "state" });
    this.note = element("span", { class: "quiet" }, remember ? "asked to remember" : "");
    this.memories = element("details", { class: "recalled" }, element("summary", {}, "Recalled"));
    this.memories.addEventListener("toggle", () => this.memories.open && this.recall());
    this.node = element(
      "article",
      { class: "turn", "data-turn": turn_id },
      element("div", {}, element("p", { class: "said" }, user_message), this.answer, element("div", { class: "row" }, this.badge, this.note)),
      this.memories,
    );
    this.become(state, reason(found));
  }

  get over() {
    return ENDED.includes(this.state);
  }

  address(...rest) {
    return address(this.conversation, "turns", this.id, ...rest);
  }

  become(state, why = "") {
    this.state = state;
    this.node.dataset.state = state;
    this.badge.textContent = STATES[state] ?? `failed${why ? ` ${why}` : ""}`;
    this.badge.classList.toggle("good", state === "persisted" || state === "promoted");
    this.badge.classList.toggle("bad", state === "failed");
  }

  /** Take over what the server says of the turn. */
  async refresh() {
    const now = await request("GET", this.address());
    if (now.answer !== null) this.answer.textContent = now.answer;
    this.become(now.state, reason(now));
  }

  async recall() {
    if (this.hasMemories) return;
    this.hasMemories = true;
    const summary = this.memories.firstElementChild;
    try {
      const found = await request("GET", this.address("memories"));
      const shown = found.memories.length ? found.memories : [found.closest].filter(Boolean);
      summary.textContent = `Recalled ${found.memories.length} ${found.memories.length === 1 ? "memory" : "memories"}`;
      if (found.degraded.length) summary.textContent += `, without ${found.degraded.join(", ")}`;
      const items = shown.map((memory) =>
        element(
          "li",
          {},
          element("div", {}, memory.user_message),
          element("div", {}, memory.assistant_message),
          element("div", { class: "quiet" }, `${scores(memory)} · ${age(memory.created_at)} ago${memory.refused ? ` · closest, not recalled: ${memory.refused}` : ""}`),
        ),
      );
      this.memories.append(element("ul", { class: "plain" }, ...items));
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      this.hasMemories = error.status === 404;
      summary.textContent = error.status === 404 ? "What was recalled is no longer kept" : "Recalled: try again";
    }
  }

  /** Show the answer while it is written; resolves when the turn is over. Nothing is shown twice, nothing is missed. */
  async watch() {
    while (!this.over) {
      await this.listen();
      try {
        await this.refresh();
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
        if (error.status === 404) return this.become("failed", ": forgotten");
        notify("The connection is lost; the answer goes on. Trying again.", true);
      }
      if (!this.over) await pause(1000);
    }
    const atEnd = isAtEnd();
    this.memories.open = true;
    await this.recall();
    if (atEnd) log.scrollTop = log.scrollHeight;
  }

  listen() {
    return new Promise((resolve) => {
      const source = new EventSource(this.address("events") + (this.last && `?after=${this.last}`));
      const done = () => {
        source.close();
        resolve();
      };
      const read = (show) => (event) => {
        this.last = event.lastEventId;
        show(JSON.parse(event.data));
      };
      source.addEventListener("open", () => notify(""));
      source.addEventListener("chunk", read((data) => this.chunk(data)));
      source.addEventListener("completed", read(() => this.become("completed")));
      for (const type of ["persisted", "promoted", "failed"]) source.addEventListener(type, read(done));
      // The browser comes back by itself while the connection is only interrupted.
      source.addEventListener("error", () => source.readyState === EventSource.CLOSED && done());
    });
  }

  chunk({ text, call }) {
    // The worker died and the model was called again: what it had said before is void.
    if (call > this.call) this.answer.textContent = "";
    this.call = call;
    this.become("recalled");
    const atEnd = isAtEnd();
    this.answer.append(text);
    if (atEnd) log.scrollTop = log.scrollHeight;
  }
}

/** Why a turn has failed, if it has. */
function reason({ failed_step, error }) {
  return failed_step ? `in ${failed_step}: ${error}` : "";
}

function scores({ score, words, nearby, meaning }) {
  const parts = { score, words, nearby, meaning };
  return Object.entries(parts)
    .filter(([, value]) => value !== null && value !== undefined)
    .map(([name, value]) => `${name} ${value.toFixed(2)}`)
    .join(", ");
}

/** What was typed and not yet accepted; it survives a reload. */
function outbox(change = (waiting) => waiting) {
  const waiting = change(JSON.parse(sessionStorage.getItem(OUTBOX) ?? "[]"));
  sessionStorage.setItem(OUTBOX, JSON.stringify(waiting));
  return waiting;
}

export class Chat {
  constructor() {
    this.turns = [];
    this.opened = 0;
    this.sending = false;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.say(text.value);
    });
    text.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        form.requestSubmit();
      }
    });
  }

  /** Show a conversation. */
  async open(conversation) {
    const opened = ++this.opened;
    this.conversation = conversation;
    this.turns = [];
    log.replaceChildren();
    await this.load();
    if (opened !== this.opened) return;
    for (const message of outbox()) {
      const shown = this.turns.some((turn) => turn.id === message.key);
      if (!shown && message.conversation === conversation) this.add(draft(message));
    }
    this.send();
    this.follow(opened);
    while (opened === this.opened) {
      await pause(REFRESH_MS);
      if (opened === this.opened && !document.hidden) await this.load();
    }
  }

  close() {
    this.opened += 1;
  }

  /** Take over what the server knows of the conversation. */
  async load() {
    const { conversation, opened } = this;
    try {
      const [working, long] = await Promise.all([
        missing(request("GET", address(conversation, "turns")), { turns: [] }),
        request("GET", address(conversation, "memories")),
      ]);
      if (opened !== this.opened) return;
      const listed = new Map();
      for (const memory of long.memories) listed.set(memory.turn_id, { ...memory, state: "promoted" });
      for (const turn of working.turns) {
        listed.set(turn.turn_id, { ...turn, state: listed.has(turn.turn_id) ? "promoted" : turn.state });
      }
      this.merge([...listed.values()].sort((a, b) => a.created_at.localeCompare(b.created_at)), long.total > long.memories.length);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      notify(error.message, true);
    }
  }

  merge(listed, more) {
    const known = new Map(this.turns.map((turn) => [turn.id, turn]));
    for (const found of listed) {
      const turn = known.get(found.turn_id);
      if (!turn) this.add(found);
      else if (turn !== this.watched && found.state !== turn.state) {
        if (found.assistant_message) turn.answer.textContent = found.assistant_message;
        turn.become(found.state, reason(found));
      }
    }
    const ids = new Set(listed.map((found) => found.turn_id));
    for (const turn of [...this.turns]) {
      // Missing twice it was forgotten, here or elsewhere; once it may just have moved from one tier to the other.
      turn.missing = turn.over && !more && !ids.has(turn.id) ? turn.missing + 1 : 0;
      if (turn.missing > 1) {
        turn.node.remove();
        this.turns.splice(this.turns.indexOf(turn), 1);
      }
    }
  }

  add(found) {
    const turn = new Turn(this.conversation, found);
    // What was typed while the conversation was still loading comes after what is older.
    const later = this.turns.findIndex((other) => other.at > turn.at);
    if (later < 0) {
      this.turns.push(turn);
      log.append(turn.node);
      log.scrollTop = log.scrollHeight;
    } else {
      this.turns[later].node.before(turn.node);
      this.turns.splice(later, 0, turn);
    }
  }

  say(value) {
    if (!value.trim()) return;
    const key = crypto.getRandomValues(new Uint32Array(4)).reduce((id, part) => id + part.toString(16).padStart(8, "0"), "");
    const message = { conversation: this.conversation, key, text: value, remember: remember.checked };
    outbox((waiting) => [...waiting, message]);
    this.add(draft(message));
    form.reset();
    text.focus();
    this.send();
  }

  /** Send what was typed, in order. With its key a message may be sent as often as it takes. */
  async send() {
    if (this.sending) return;
    this.sending = true;
    for (let message; (message = outbox()[0]); ) {
      const shown = this.turns.find((turn) => turn.id === message.key);
      try {
        const { state } = await request("POST", address(message.conversation, "turns"), {
          body: { text: message.text, remember: message.remember },
          headers: { "Idempotency-Key": message.key },
        });
        if (shown?.state === "sending") shown.become(state);
        notify("");
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
        notify(error.message, true);
        if ([0, 429].includes(error.status) || error.status >= 500) {
          await pause(1000);
          continue;
        }
        shown?.become("failed", `: ${error.message}`);
      }
      outbox((waiting) => waiting.filter((one) => one.key !== message.key));
    }
    this.sending = false;
  }

  /** Watch the earliest turn that is not over: those behind it wait for it. */
  async follow(opened) {
    while (opened === this.opened) {
      const next = this.turns.find((turn) => !turn.over && turn.state !== "sending");
      if (next) {
        this.watched = next;
        await next.watch();
        this.watched = null;
      } else {
        await pause(50);
      }
    }
  }
}

function draft({ key, text, remember }) {
  return { turn_id: key, user_message: text, remember, state: "sending", created_at: new Date().toISOString() };
}

/** A conversation that is not there (yet) is empty. */
async function missing(asked, instead) {
  try {
    return await asked;
  } catch (error) {
    if (error.status === 404) return instead;
    throw error;
  }
}
