// Operations: how the system stands. Nothing here shows what people have said.

import { pause, request } from "./api.js";
import { Chart } from "./chart.js";
import { age, duration, element, notify } from "./dom.js";

const POLL_MS = 2000;
const TOKEN = "operations-token";
const STEPS = ["recall", "complete", "persist"];

const unlock = document.getElementById("unlock");
const unlocked = document.getElementById("unlocked");
const token = document.getElementById("token");
const failed = document.getElementById("failed");
const checks = document.getElementById("checks");
const silent = document.getElementById("silent");

export class Operations {
  constructor() {
    this.opened = 0;
    this.before = null;
    const whole = (value) => `${Math.round(value * 10) / 10}`;
    this.charts = {
      queues: new Chart("Messages that wait", ["reply", "persist", "promote"], whole),
      replies: new Chart("Replies a minute", ["persisted", "failed"], whole),
      steps: new Chart("Time of a step", STEPS, duration),
      promotion: new Chart("Promotion", ["lag", "oldest unpromoted turn"], duration),
    };
    document.getElementById("charts").replaceChildren(...Object.values(this.charts).map((chart) => chart.node));
    document.getElementById("check").addEventListener("click", () => this.guarded(() => this.check()));
    unlock.addEventListener("submit", (event) => {
      event.preventDefault();
      sessionStorage.setItem(TOKEN, token.value);
      unlock.reset();
      notify("");
      this.open();
    });
  }

  ask(method, path, body) {
    return request(method, `operations/${path}`, {
      body,
      headers: { Authorization: `Bearer ${sessionStorage.getItem(TOKEN) ?? ""}` },
    });
  }

  async open() {
    const opened = ++this.opened;
    this.before = null;
    if (!(await this.guarded(() => this.check()))) return;
    while (opened === this.opened) {
      if (!document.hidden) await this.guarded(() => this.look());
      await pause(POLL_MS);
    }
  }

  close() {
    this.opened += 1;
  }

  /** Do something that needs the token; false when it was refused. */
  async guarded(action) {
    try {
      await action();
    } catch (error) {
      if (error.status === 401 || error.status === 404 || error.status === 405) {
        this.opened += 1;
        unlocked.hidden = true;
        unlock.hidden = error.status !== 401;
        const tried = sessionStorage.getItem(TOKEN);
        if (error.status !== 401) notify("Operations are off: set MEMORY_TASKS_OPERATIONS_TOKEN and start again.", true);
        else notify(tried ? error.message : "Operations need their token.", Boolean(tried));
        sessionStorage.removeItem(TOKEN);
      } else {
        notify(error.message, true);
      }
      return false;
    }
    unlock.hidden = true;
    unlocked.hidden = false;
    return true;
  }

  async look() {
    const [now, dead] = await Promise.all([this.ask("GET", "overview"), this.ask("GET", "failed")]);
    const before = this.before ?? now;
    this.before = now;
    const minutes = (new Date(now.at) - new Date(before.at)) / 60000;
    const rate = (name) => (minutes ? grown(now.counted.replies[name], before.counted.replies[name]) / minutes : 0);
    this.charts.queues.add(["reply", "persist", "promote"].map((name) => now.queues[name] ?? 0));
    this.charts.replies.add(["persisted", "failed"].map(rate));
    this.charts.steps.add(STEPS.map((name) => mean(now.counted.steps[name], before.counted.steps[name])));
    const lag = mean(now.counted.promotion_lag, before.counted.promotion_lag);
    this.charts.promotion.add([lag, now.oldest_unpromoted_seconds]);
    silent.textContent = now.counted.silent.length ? `No metrics from ${now.counted.silent.join(", ")}.` : "";
    this.list(dead, now.dead_letters);
  }

  list(dead, total) {
    document.getElementById("failed-title").textContent = `Dead letters: ${total}`;
    const key = JSON.stringify(dead.map((turn) => [turn.user_id, turn.conversation_id, turn.turn_id, turn.failed_at]));
    // Rows stay as they are while they are the same, so that nobody loses their place in them.
    if (key === this.listed) return;
    this.listed = key;
    failed.replaceChildren(
      ...dead.map((turn) => {
        const { user_id, conversation_id, turn_id } = turn;
        const act = (what, label) =>
          element(
            "button",
            {
              type: "button",
              "aria-label": `${label} turn ${turn_id}`,
              onclick: () =>
                this.guarded(async () => {
                  await this.ask("POST", `failed/${what}`, { user_id, conversation_id, turn_id });
                  notify(`${label}: ${turn_id}`);
                  await this.look();
                }),
            },
            label,
          );
        return element(
          "tr",
          { "data-turn": turn_id },
          element("td", {}, turn_id),
          element("td", {}, conversation_id),
          element("td", {}, user_id),
          element("td", {}, `${turn.failed_step}: ${turn.error}`),
          element("td", {}, turn.failed_at ? age(turn.failed_at) : ""),
          element("td", {}, element("div", { class: "row" }, act("retry", "Retry"), act("drop", "Drop"))),
        );
      }),
    );
  }

  async check() {
    const found = await this.ask("GET", "checks");
    checks.replaceChildren(
      ...found.map((one) =>
        element(
          "div",
          {},
          element("dt", {}, `${one.remedy ? "✗" : "✓"} ${one.name}`),
          element("dd", {}, one.found),
          ...(one.remedy ? [element("dd", { class: "bad" }, one.remedy)] : []),
        ),
      ),
    );
  }
}

/** By how much a counter grew; a worker that started again counts from zero. */
function grown(now = 0, before = 0) {
  return now < before ? now : now - before;
}

function mean(now = { count: 0, seconds: 0 }, before = { count: 0, seconds: 0 }) {
  const count = grown(now.count, before.count);
  return count ? grown(now.seconds, before.seconds) / count : null;
}
