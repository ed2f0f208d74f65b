// The IndexedDB that holds kept sessions: opens it, and changes it in transactions.
//
// Chromium has a fault, which two functions here are for. It appends to the log of its last run. A run that is killed in the middle of a write
// leaves part of a record there, and whatever is appended after it makes the log unreadable. The next run then removes all databases of the
// origin. Decision: docs/internals/saving-and-restoring.md.

import { SandboxError } from "./sandbox-error.js";

const DATABASE = "sandglass";
const VERSION = 2;
/** A database that is made and removed, and holds nothing. */
const PASSING = "sandglass passing";
/** The longest wait for another log, in milliseconds. A tab that is frozen with that database open would hold all others up. */
const LOG_WAIT_MS = 10_000;
export const SESSIONS = "sessions";
/** Bodies by the session's name and the body's number. */
export const BODIES = "bodies";
/** Parts of the journal of the execution after the kept state, by the session's name and the part's number. */
export const JOURNALS = "journals";

/**
 * The loss that the browser has told of in this page, until it was passed on. Only the first database that is opened hears of it.
 * @type {string | undefined}
 */
let lost;

/**
 * Opens the database. Rejects with `persist_lost`, once, after the browser has removed a damaged one.
 * @returns {Promise<IDBDatabase>}
 */
export async function openDatabase() {
  if (isChromium()) await Promise.race([beginAnotherLog(), passed(LOG_WAIT_MS)]);
  const database = await open(DATABASE, VERSION, (database, event) => {
    noteLoss(event);
    for (const store of [SESSIONS, BODIES, JOURNALS])
      if (!database.objectStoreNames.contains(store)) database.createObjectStore(store);
  });
  if (lost !== undefined) {
    const why = lost;
    lost = undefined;
    database.close();
    throw lossOf(why);
  }
  database.onversionchange = () => database.close(); // a later release, or who clears the site's data, does not wait for this page
  return database;
}

/**
 * Makes changes of which all are written or none. Resolves when they are.
 * @param {IDBDatabase} database @param {string[]} names @param {(...stores: IDBObjectStore[]) => void} change
 */
export function inTransaction(database, names, change) {
  const transaction = database.transaction(names, "readwrite");
  const isDone = done(transaction);
  try {
    change(...names.map((store) => transaction.objectStore(store)));
  } catch (error) {
    isDone.catch(() => {});
    transaction.abort(); // a request that threw would leave the others to be written
    throw error;
  }
  return isDone;
}

/** @template T @param {IDBRequest<T>} request @returns {Promise<T>} */
export function result(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/** @param {number} ms */
const passed = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Only Chromium tells of losses. */
const isChromium = () => "dataLoss" in IDBVersionChangeEvent.prototype;

/**
 * Has Chromium begin another log, before anything else is written. It does so after a database was removed.
 * That takes some milliseconds. Only a browser that is killed within these may still lose its databases.
 */
async function beginAnotherLog() {
  const database = await open(PASSING, 1, (database, event) => {
    noteLoss(event);
    database.createObjectStore(SESSIONS); // Chromium keeps the log if there was nothing to remove
  });
  database.close();
  await result(indexedDB.deleteDatabase(PASSING));
}

/**
 * @param {string} name @param {number} version
 * @param {(database: IDBDatabase, event: IDBVersionChangeEvent) => void} upgrade
 * @returns {Promise<IDBDatabase>}
 */
function open(name, version, upgrade) {
  const request = indexedDB.open(name, version);
  request.onupgradeneeded = (event) => upgrade(request.result, event);
  const blocked = new Promise((_, reject) => {
    request.onblocked = () => {
      request.addEventListener("success", () => request.result.close()); // nobody waits for it any more
      reject(new Error("a tab with another release of sandglass has it open; close that tab"));
    };
  });
  return Promise.race([result(request), /** @type {Promise<never>} */ (blocked)]);
}

/** @param {IDBVersionChangeEvent} event */
function noteLoss(event) {
  if ("dataLoss" in event && event.dataLoss === "total") lost ??= messageOf(event);
}

/** @param {IDBVersionChangeEvent} event */
const messageOf = (event) => String(/** @type {{ dataLossMessage?: string }} */ (event).dataLossMessage ?? "damaged");

/** @param {string} message */
const lossOf = (message) =>
  new SandboxError(
    "persist_lost",
    `persist: the browser has removed all sessions that it kept for this site, because its own database was damaged (${message}); call again to begin anew`,
  );

/** Resolves when everything was written. @param {IDBTransaction} transaction @returns {Promise<void>} */
function done(transaction) {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = () => reject(transaction.error ?? new Error("the browser gave it up"));
  });
}
