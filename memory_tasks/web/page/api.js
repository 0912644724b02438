// Requests to the server this page comes from.

/** What the server said when it refused: `status`, and a message for people. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/**
 * Send a request and read its JSON.
 * @throws {Refused} The server answered with an error; `status` 0 means that it did not answer at all.
 */
export async function request(method, path, { body, headers } = {}) {
  let response;
  try {
    response = await fetch(path, {
      method,
      headers: { ...(body === undefined ? {} : { "Content-Type": "application/json" }), ...headers },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new Refused(0, "The server does not answer.");
  }
  if (!response.ok) {
    const problem = await response.json().catch(() => ({}));
    const wrong = (problem.errors ?? []).map((error) => error.message).join("; ");
    throw new Refused(response.status, [problem.detail ?? response.statusText, wrong].filter(Boolean).join(" "));
  }
  return response.status === 204 ? null : response.json();
}

/** The address of a conversation, or of something in it. */
export function address(conversation, ...rest) {
  return ["api/conversations", conversation, ...rest].map((part, n) => (n ? encodeURIComponent(part) : part)).join("/");
}

/** Wait for so many milliseconds. */
export function pause(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
