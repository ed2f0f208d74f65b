/** The error of a sandbox that cannot do what it was asked to. `code` names the kind of error and never changes. */
export class SandboxError extends Error {
  name = "SandboxError";

  /** @param {string} code @param {string} message */
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}
