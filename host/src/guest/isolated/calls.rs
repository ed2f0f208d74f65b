//! Calls that a stopped process makes one after the other, in one go. Each stop costs two changes of processes.
//!
//! A loop makes them, in memory that the tracer has the process map for it. The process cannot be dumped, so another process reaches this memory
//! only if it shares all memory with this one. Code and data are on different pages: none can be both written and run.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use nix::libc::{self, c_long};

use super::steps::{Registers, succeeded};
use crate::guest::traced::Traced;
use crate::procfs;

/// Bytes of the memory that is mapped for the code, the table of calls, and their data.
pub(super) const BYTES: u64 = 36 << 10;
/// Bytes of the code, which comes first.
pub(super) const CODE_BYTES: u64 = 4 << 10;
const REAPER_AT: u64 = 256;
const TABLE_AT: u64 = CODE_BYTES;
const DATA_AT: u64 = 20 << 10;
const ROW_BYTES: u64 = 56;
/// The end of the memory that a process gets without asking for a higher place. What is above stays, and counts as what a keeper holds.
const END: u64 = (1 << 47) - (4 << 10);
/// The place in the loop after a call.
const CALLED_AT: u64 = 41;

/// Makes the call of each row, and puts the result into the row. `r12` is the row, `r13` the number of rows.
#[rustfmt::skip]
const LOOP: [u8; 55] = [
    0x4d, 0x85, 0xed,             // again: test r13, r13
    0x74, 0x31,                   //        jz done
    0x49, 0x8b, 0x04, 0x24,       //        mov rax, [r12]
    0x49, 0x8b, 0x7c, 0x24, 0x08, //        mov rdi, [r12 + 8]
    0x49, 0x8b, 0x74, 0x24, 0x10, //        mov rsi, [r12 + 16]
    0x49, 0x8b, 0x54, 0x24, 0x18, //        mov rdx, [r12 + 24]
    0x4d, 0x8b, 0x54, 0x24, 0x20, //        mov r10, [r12 + 32]
    0x4d, 0x8b, 0x44, 0x24, 0x28, //        mov r8, [r12 + 40]
    0x4d, 0x8b, 0x4c, 0x24, 0x30, //        mov r9, [r12 + 48]
    0x0f, 0x05,                   //        syscall
    0x49, 0x89, 0x04, 0x24,       //        mov [r12], rax
    0x49, 0x83, 0xc4, 0x38,       //        add r12, 56
    0x49, 0xff, 0xcd,             //        dec r13
    0xeb, 0xca,                   //        jmp again
    0xcc,                         // done:  int3
];

/// Waits for the end of all child processes, and ends then.
#[rustfmt::skip]
const REAPER: [u8; 39] = [
    0xbf, 0xff, 0xff, 0xff, 0xff, // again: mov edi, -1
    0x31, 0xf6,                   //        xor esi, esi
    0x31, 0xd2,                   //        xor edx, edx
    0x45, 0x31, 0xd2,             //        xor r10d, r10d
    0xb8, 0x3d, 0x00, 0x00, 0x00, //        mov eax, 61 (wait4)
    0x0f, 0x05,                   //        syscall
    0x48, 0x85, 0xc0,             //        test rax, rax
    0x79, 0xe8,                   //        jns again
    0x48, 0x83, 0xf8, 0xfc,       //        cmp rax, -4 (EINTR)
    0x74, 0xe2,                   //        je again
    0x31, 0xff,                   //        xor edi, edi
    0xb8, 0xe7, 0x00, 0x00, 0x00, //        mov eax, 231 (exit_group)
    0x0f, 0x05,                   //        syscall
];

/// A call that is to be made.
struct Row {
    name: &'static str,
    number: c_long,
    arguments: [u64; 6],
    /// The result that the following calls rely on.
    wanted: Option<u64>,
}

/// Calls that are to be made in one go.
pub(super) struct Calls<'a> {
    memory: &'a File,
    pages: u64,
    /// The process's number in its own namespace.
    own: u64,
    rows: Vec<Row>,
    data: Vec<u8>,
}

/// Calls that a process is making.
pub(super) struct UnderWay {
    rows: Vec<Row>,
}

/// Writes the code to the memory at `pages`.
pub(super) fn prepare(memory: &File, pages: u64) -> io::Result<()> {
    memory.write_all_at(&LOOP, pages)?;
    memory.write_all_at(&REAPER, pages + REAPER_AT)
}

/// Returns true if the code is what was written.
pub(super) fn has_code(memory: &File, pages: u64) -> bool {
    let (mut calls, mut reaper) = ([0; LOOP.len()], [0; REAPER.len()]);
    let read = memory.read_exact_at(&mut calls, pages);
    let read = read.and_then(|()| memory.read_exact_at(&mut reaper, pages + REAPER_AT));
    read.is_ok() && (calls, reaper) == (LOOP, REAPER)
}

/// The registers of a process that only waits for its children to end.
pub(super) fn reaper(at: &Registers, pages: u64) -> Registers {
    let mut registers = *at;
    registers.rip = pages + REAPER_AT;
    registers
}

/// Has keepers drop all memory but the page of the code, which is all that they need. `keeper` is any of them, as they share it. `at` are registers
/// at the end of a call.
///
/// # Errors
/// They have ended.
pub(super) fn drop_memory(keeper: &Traced, at: &Registers, pages: u64) -> io::Result<()> {
    let mut at = *at;
    at.rip = pages + CALLED_AT; // the calls of the page itself, as all others go
    let page = pages..pages + CODE_BYTES;
    for part in [0..page.start, page.end..END] {
        if drop_part(keeper, &at, &part).is_ok() {
            continue;
        }
        // Libraries that the loader has sealed cannot go.
        let maps = procfs::maps(keeper.pid())?;
        let within = maps.lines().filter_map(place);
        for one in within.filter(|one| part.start <= one.start && one.end <= part.end) {
            let _ = drop_part(keeper, &at, &one);
        }
    }
    Ok(())
}

fn drop_part(keeper: &Traced, at: &Registers, part: &Range<u64>) -> io::Result<u64> {
    let bytes = part.end.saturating_sub(part.start);
    if bytes == 0 {
        return Ok(0);
    }
    keeper.call(at, libc::SYS_munmap, [part.start, bytes, 0, 0, 0, 0])
}

/// The place of a line of `/proc/<pid>/maps`. That of the kernel (`[vsyscall]`) is none of the process's.
fn place(line: &str) -> Option<Range<u64>> {
    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
    let [start, end] = [start, end].map(|address| u64::from_str_radix(address, 16));
    let place = start.ok()?..end.ok()?;
    (place.end.cast_signed() > 0).then_some(place)
}

impl<'a> Calls<'a> {
    /// No calls yet. `memory` is that of the process, `pages` the address of its prepared part, and `own` its number in its own namespace.
    pub(super) fn new(memory: &'a File, pages: u64, own: u64) -> Self {
        Self {
            memory,
            pages,
            own,
            rows: Vec::new(),
            data: Vec::new(),
        }
    }

    /// The address that these bytes will have.
    pub(super) fn data(&mut self, bytes: &[u8]) -> u64 {
        let at = self.pages + DATA_AT + self.data.len() as u64;
        self.data.extend_from_slice(bytes);
        self.data.resize(self.data.len().next_multiple_of(16), 0);
        at
    }

    /// The address that this text will have, with a zero after it.
    pub(super) fn text(&mut self, text: &[u8]) -> u64 {
        self.data(&[text, b"\0"].concat())
    }

    pub(super) fn add<const N: usize>(&mut self, name: &'static str, number: c_long, arguments: [u64; N]) {
        let mut all = [0; 6];
        all[..N].copy_from_slice(&arguments);
        self.rows.push(Row {
            name,
            number,
            arguments: all,
            wanted: None,
        });
    }

    /// The same for a call that returns the lowest descriptor that is free, which is known.
    pub(super) fn opens<const N: usize>(&mut self, name: &'static str, number: c_long, arguments: [u64; N], fd: u64) {
        self.add(name, number, arguments);
        if let Some(row) = self.rows.last_mut() {
            row.wanted = Some(fd);
        }
    }

    /// Makes the calls. If one of them makes a process, returns that one. `at` are registers of which all but the places are kept.
    ///
    /// # Errors
    /// The first call that failed. The later ones were made nevertheless, so the process has to end.
    pub(super) fn run(&mut self, traced: &Traced, at: &Registers) -> io::Result<Option<Traced>> {
        let under_way = self.start(traced, at)?;
        self.end(traced, &under_way)
    }

    /// Has the process begin to make the calls. Have it come to their [`Calls::end`] in any case: a process that is being made meanwhile is seen
    /// there. Until then, no process that shares its memory may make calls from there.
    pub(super) fn start(&mut self, traced: &Traced, at: &Registers) -> io::Result<UnderWay> {
        // All signals that can be are blocked, and a trap would end the process.
        self.add(
            "kill",
            libc::SYS_kill,
            [self.own, u64::from(libc::SIGSTOP.cast_unsigned())],
        );
        let rows = std::mem::take(&mut self.rows);
        let data = std::mem::take(&mut self.data);
        let table = rows
            .iter()
            .flat_map(|row| [row.number.cast_unsigned()].into_iter().chain(row.arguments));
        let table: Vec<u8> = table.flat_map(u64::to_ne_bytes).collect();
        if table.len() as u64 > DATA_AT - TABLE_AT || data.len() as u64 > BYTES - DATA_AT {
            return Err(io::Error::other("too many files are open"));
        }
        self.memory.write_all_at(&data, self.pages + DATA_AT)?;
        self.memory.write_all_at(&table, self.pages + TABLE_AT)?;
        let mut registers = *at;
        registers.rip = self.pages;
        (registers.r12, registers.r13) = (self.pages + TABLE_AT, rows.len() as u64);
        traced.go(&registers)?;
        Ok(UnderWay { rows })
    }

    /// Waits until the calls are made, as [`Calls::run`] does.
    pub(super) fn end(&self, traced: &Traced, UnderWay { rows }: &UnderWay) -> io::Result<Option<Traced>> {
        let made = traced.arrive()?;
        // Another signal than its own would have stopped it before the last call, and the others would count as made.
        let end = traced.registers()?;
        if (end.rip, end.r13, end.rax) != (self.pages + CALLED_AT, 1, 0) {
            return Err(io::Error::other("it was stopped before its calls were made"));
        }
        let called = rows.split_last().map_or(&[][..], |(_, called)| called);
        for (row, at) in called.iter().zip((self.pages + TABLE_AT..).step_by(ROW_BYTES as usize)) {
            let mut result = [0; 8];
            self.memory.read_exact_at(&mut result, at)?;
            let result = succeeded(u64::from_ne_bytes(result));
            let result = result.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", row.name)))?;
            if row.wanted.is_some_and(|wanted| wanted != result) {
                return Err(io::Error::other(format!(
                    "{}: another descriptor than the lowest",
                    row.name
                )));
            }
        }
        Ok(made)
    }

    /// Makes the calls so far, if there may be no place for another file's.
    pub(super) fn make_room(&mut self, traced: &Traced, at: &Registers) -> io::Result<()> {
        const MOST_ROWS: usize = 200;
        const MOST_DATA: usize = 4 << 10;
        if self.rows.len() > MOST_ROWS || self.data.len() > MOST_DATA {
            self.run(traced, at)?;
        }
        Ok(())
    }

    /// Bytes of the data of the last go.
    pub(super) fn read<const N: usize>(&self, at: u64) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.memory.read_exact_at(&mut bytes, at)?;
        Ok(bytes)
    }
}
