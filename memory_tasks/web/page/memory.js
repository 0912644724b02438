// Memory: what is remembered of a conversation, in both tiers, on one timeline.

import { address, request } from "./api.js";
import { age, confirmed, element, notify } from "./dom.js";

const LIMIT = 200;

const timeline = document.getElementById("timeline");
const count = document.getElementById("count");
const query = document.getElementById("query");

export class Memory {
  constructor() {
    document.getElementById("find").addEventListener("submit", (event) => {
      event.preventDefault();
      this.show();
    });
    document.getElementById("forget-conversation").addEventListener("click", () =>
      this.forget(`Forget all of “${this.conversation}”, in every tier? It can't be undone.`, address(this.conversation)),
    );
    document.getElementById("forget-user").addEventListener("click", () =>
      this.forget("Forget everything about you, in all conversations? It can't be undone.", "api/user"),
    );
  }

  async open(conversation) {
    this.conversation = conversation;
    query.value = "";
    await this.show();
  }

  close() {}

  async show() {
    const words = query.value.trim();
    try {
      const [working, long] = await Promise.all([this.working(), words ? this.search(words) : this.memories()]);
      const tiers = new Map();
      for (const memory of long.memories) tiers.set(memory.turn_id, { ...memory, tiers: ["long-term memory"] });
      for (const turn of working) {
        const known = tiers.get(turn.turn_id);
        if (known) known.tiers.unshift("working memory");
        else if (!words || contains(turn, words)) tiers.set(turn.turn_id, { ...turn, tiers: [place(turn.state)] });
      }
      const found = [...tiers.values()];
      if (!words) found.sort((a, b) => a.created_at.localeCompare(b.created_at));
      timeline.replaceChildren(...found.map((turn) => this.item(turn)));
      count.textContent = words
        ? `${found.length} found, best first; long-term memory has ${long.total} of this conversation.`
        : `${found.length} shown, oldest first; long-term memory has ${long.total} of this conversation.`;
    } catch (error) {
      timeline.replaceChildren();
      count.textContent = "";
      notify(error.message, true);
    }
  }

  async working() {
    try {
      return (await request("GET", `${address(this.conversation, "turns")}?limit=${LIMIT}`)).turns;
    } catch (error) {
      if (error.status === 404) return [];
      throw error;
    }
  }

  memories() {
    return request("GET", `${address(this.conversation, "memories")}?limit=${LIMIT}`);
  }

  search(words) {
    return request("POST", address(this.conversation, "memories", "search"), { body: { query: words, limit: 20 } });
  }

  item(turn) {
    const about = [turn.tiers.join(" and "), `${age(turn.created_at)} ago`];
    if (turn.remember) about.push("asked to remember");
    if (turn.importance !== null && turn.importance !== undefined) about.push(`importance ${turn.importance.toFixed(2)}`);
    if (turn.score !== null && turn.score !== undefined) about.push(`score ${turn.score.toFixed(2)}`);
    return element(
      "li",
      { class: turn.tiers.includes("long-term memory") ? "long" : "", "data-turn": turn.turn_id },
      element("p", {}, element("strong", {}, "You: "), turn.user_message),
      element("p", {}, element("strong", {}, "Assistant: "), turn.assistant_message ?? "…"),
      element(
        "div",
        { class: "row quiet" },
        element("span", {}, about.join(" · ")),
        element(
          "button",
          {
            type: "button",
            class: "danger",
            "aria-label": `Forget turn ${turn.turn_id}`,
            onclick: () => this.forget("Forget this turn, in every tier? It can't be undone.", address(this.conversation, "turns", turn.turn_id)),
          },
          "Forget",
        ),
      ),
    );
  }

  async forget(question, path) {
    if (!(await confirmed(question))) return;
    try {
      const { working, long_term, ledger } = await request("DELETE", path);
      notify(`Forgotten: ${working} in working memory, ${long_term} in long-term memory, ${ledger} in the ledger.`);
    } catch (error) {
      notify(error.message, true);
    }
    await this.show();
  }
}

function place(state) {
  return state === "failed" ? "dead letter" : state === "persisted" || state === "promoted" ? "working memory" : "on its way";
}

function contains(turn, words) {
  return `${turn.user_message} ${turn.assistant_message ?? ""}`.toLowerCase().includes(words.toLowerCase());
}
