// The player's controls: play, pause, step, and a slider for the place in a recording.

import { byId, icon } from "../dom.js";

/** @import { Player } from "./player.js" */
/** @import { RunView } from "./view.js" */

/** The toolbar of a recording. */
export class PlayerControls {
  #view;
  /** @type {Player | undefined} */
  #player;
  #shown = "";
  #bar = byId("player");
  #toggle = byId("player-play");
  #step = /** @type {HTMLButtonElement} */ (byId("player-step"));
  #range = /** @type {HTMLInputElement} */ (byId("player-position"));
  #speed = /** @type {HTMLSelectElement} */ (byId("player-speed"));
  #text = byId("player-text");

  /** @param {RunView} view */
  constructor(view) {
    this.#view = view;
    this.#toggle.addEventListener("click", () => (this.#player?.playing ? this.#pause() : this.play()));
    this.#step.addEventListener("click", () => {
      this.#pause();
      this.#seek((this.#player?.position ?? 0) + 1);
    });
    this.#range.addEventListener("input", () => {
      this.#pause();
      this.#seek(this.#range.valueAsNumber);
    });
    this.#speed.addEventListener("change", () => {
      if (this.#player) this.#player.speed = Number(this.#speed.value);
    });
  }

  /** @param {Player} player */
  show(player) {
    this.#player = player;
    player.speed = Number(this.#speed.value);
    this.#range.max = String(player.length);
    this.#bar.hidden = false;
    this.update();
  }

  hide() {
    this.#player?.pause();
    this.#player = undefined;
    this.#bar.hidden = true;
  }

  /** Plays from the current place, or from the beginning if the recording is at its end. */
  play() {
    const player = this.#player;
    if (!player) return;
    if (player.position === player.length && player.seek(0)) this.#view.reset();
    player.play();
    this.#view.wake();
    this.update();
  }

  #pause() {
    this.#player?.pause();
    this.update();
  }

  /** @param {number} position */
  #seek(position) {
    if (this.#player?.seek(position)) this.#view.reset();
    this.#view.wake();
  }

  /** Shows the current place. */
  update() {
    const player = this.#player;
    if (!player) return;
    const { position, length, playing } = player;
    const shown = `${position} ${playing}`;
    if (shown === this.#shown) return;
    this.#shown = shown;
    const label = playing ? "Pause" : position === length ? "Play again" : "Play";
    this.#toggle.replaceChildren(icon(playing ? "pause" : "run"), label);
    this.#step.disabled = position === length;
    this.#range.value = String(position);
    this.#range.setAttribute("aria-valuetext", `event ${position} of ${length}`);
    this.#text.textContent = `${position.toLocaleString("en")} of ${length.toLocaleString("en")} events`;
  }
}
