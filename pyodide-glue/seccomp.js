// The filter of system calls for a guest's process in bubblewrap: a second wall behind the namespaces. It refuses new
// processes, sockets, more namespaces and mounts, and parts of the kernel that often had security holes.
// Decisions: docs/internals/guest-in-a-process.md.

const EPERM = 1;
const ENOSYS = 38;
/** `mseal`: calls that are newer than this one are unknown here, and so do not exist for the guest. */
const NEWEST = 462;
/** The flag of `clone` for a thread. Without it, `clone` makes a process. */
const CLONE_THREAD = 0x0001_0000;
const CLONE3 = 435;

/** Calls with the same number everywhere: io_uring, mounts, `pidfd_getfd`, `process_madvise`, `memfd_secret`. */
const NEW_CALLS = [425, 426, 427, 428, 429, 430, 431, 432, 433, 438, 440, 442, 447];
/**
 * For each processor: its number for the kernel, `clone`, and the refused calls. These are fork, vfork; socket, connect,
 * bind, listen; ptrace, process_vm_readv, process_vm_writev, kcmp; mount, umount2, pivot_root, chroot, unshare,
 * setns; name_to_handle_at, open_by_handle_at; add_key, request_key, keyctl; bpf, perf_event_open, userfaultfd;
 * init_module, finit_module, delete_module, kexec_load.
 * @type {Record<string, { arch: number, clone: number, refused: number[] }>}
 */
const PROCESSORS = {
  x64: {
    arch: 0xc000_003e,
    clone: 56,
    refused: [
      ...[57, 58, 41, 42, 49, 50, 101, 310, 311, 312, 165, 166, 155, 161, 272, 308],
      ...[303, 304, 248, 249, 250, 321, 298, 323, 175, 313, 176, 246],
    ],
  },
  arm64: {
    arch: 0xc000_00b7,
    clone: 220,
    refused: [
      ...[198, 203, 200, 201, 117, 270, 271, 272, 40, 39, 41, 51, 97, 268],
      ...[264, 265, 217, 218, 219, 280, 241, 282, 105, 273, 106, 104],
    ],
  },
};

// Classic BPF: load a word, compare and skip, return.
const LOAD = 0x20;
const IF_EQUAL = 0x15;
const IF_GREATER = 0x25;
const IF_SET = 0x45;
const RETURN = 0x06;
const ALLOW = 0x7fff_0000;
const KILL = 0x8000_0000;
const ERROR = 0x0005_0000;
// Offsets in what the kernel gives to a filter: the call's number, the processor, the lower half of the first argument.
const CALL = 0;
const ARCH = 4;
const FIRST = 16;

/** The filter for this machine, as `bwrap --seccomp` reads it; undefined for an unknown processor. @param {string} processor */
export function filterFor(processor) {
  const { arch, clone, refused } = PROCESSORS[processor] ?? {};
  if (arch === undefined || !refused) return undefined;
  /** @type {[code: number, skipIf: number, skipElse: number, value: number][]} */
  const steps = [
    [LOAD, 0, 0, ARCH],
    [IF_EQUAL, 1, 0, arch],
    [RETURN, 0, 0, KILL],
    [LOAD, 0, 0, CALL],
    // This includes the calls of x32, whose numbers are large.
    [IF_GREATER, 0, 1, NEWEST],
    [RETURN, 0, 0, ERROR | ENOSYS],
    // Its flags are in memory, where a filter cannot look. Libraries fall back to `clone`.
    [IF_EQUAL, 0, 1, CLONE3],
    [RETURN, 0, 0, ERROR | ENOSYS],
    ...[...refused, ...NEW_CALLS].flatMap((call) => [
      /** @type {[number, number, number, number]} */ ([IF_EQUAL, 0, 1, call]),
      /** @type {[number, number, number, number]} */ ([RETURN, 0, 0, ERROR | EPERM]),
    ]),
    [IF_EQUAL, 0, 3, clone],
    [LOAD, 0, 0, FIRST],
    [IF_SET, 1, 0, CLONE_THREAD],
    [RETURN, 0, 0, ERROR | EPERM],
    [RETURN, 0, 0, ALLOW],
  ];
  const bytes = new Uint8Array(steps.length * 8);
  const view = new DataView(bytes.buffer);
  for (const [index, [code, skipIf, skipElse, value]] of steps.entries()) {
    view.setUint16(index * 8, code, true);
    bytes[index * 8 + 2] = skipIf;
    bytes[index * 8 + 3] = skipElse;
    view.setUint32(index * 8 + 4, value, true);
  }
  return bytes;
}
