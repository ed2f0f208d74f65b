//! Steps of traced processes: calls that a process makes in place of its own.

use std::cell::Cell;
use std::io;

use nix::errno::Errno;
use nix::libc::{self, c_long, user_regs_struct};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::guest::traced::{Stop, Traced, options, unexpected};

/// Lets the system calls of a process pass its filter (`PTRACE_O_SUSPEND_SECCOMP`). The kernel asks for `CAP_SYS_ADMIN` in the first user
/// namespace.
const SUSPEND_FILTER: Options = Options::from_bits_retain(1 << 21);
/// The kernel's name of the machine, of which a process makes its calls (`AUDIT_ARCH_X86_64`).
const MACHINE: u32 = 0xC000_003E;
/// Bytes of the instruction that makes a call.
const CALL_BYTES: u64 = 2;
/// A register's value for "no call is under way".
const NO_CALL: u64 = u64::MAX;

pub(super) type Registers = user_regs_struct;

impl Traced {
    pub(super) fn registers(&self) -> io::Result<Registers> {
        Ok(ptrace::getregs(self.pid)?)
    }

    /// Lets a process that a signal has stopped run again, once it is let run.
    pub(super) fn take_back_stop(&self) -> io::Result<()> {
        self.signal(Signal::SIGCONT)
    }

    /// Runs to the begin of one of these calls, and returns its number. Any other call but those allowed ends the process before it is made.
    pub(super) fn run_to(&self, calls: &[c_long], allowed: &[c_long]) -> io::Result<c_long> {
        loop {
            ptrace::syscall(self.pid, None)?;
            match self.wait()? {
                Stop::Call => {}
                // The stop that is taken back may still be told.
                Stop::Interrupted | Stop::Signal(Signal::SIGCONT) => continue,
                stop => return Err(unexpected(format_args!("the process {} stopped: {stop:?}", self.pid))),
            }
            let info = ptrace::syscall_info(self.pid)?;
            if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
                continue;
            }
            let number = self.registers()?.orig_rax.cast_signed();
            let is_own_machine = info.arch == MACHINE;
            if is_own_machine && calls.contains(&number) {
                return Ok(number);
            }
            if !is_own_machine || !allowed.contains(&number) {
                self.kill();
                return Err(unexpected(format_args!(
                    "the process {} was about to make the call {number}, and was ended",
                    self.pid
                )));
            }
        }
    }

    /// Makes a call in place of the one at whose begin the process stands, and comes back to that begin. `at` are the registers there.
    pub(super) fn call_instead(&self, at: &Registers, number: c_long, arguments: [u64; 6]) -> io::Result<u64> {
        self.begin_instead(at, number, arguments)?;
        match self.wait()? {
            Stop::Call => {}
            stop => return Err(unexpected(format_args!("a call stopped: {stop:?}"))),
        }
        let result = self.registers()?.rax;
        self.return_to(at)?;
        succeeded(result)
    }

    /// Has the process make another one, past its filter, in place of the call at whose begin it stands. The new process has made no step. The
    /// old one comes back to that begin.
    pub(super) fn clone_instead(&self, at: &Registers, flags: c_long) -> io::Result<Self> {
        ptrace::setoptions(self.pid, options() | SUSPEND_FILTER)?;
        self.begin_instead(at, libc::SYS_clone, [flags.cast_unsigned(), 0, 0, 0, 0, 0])?;
        let stop = self.wait()?;
        let made = match stop {
            Stop::Forked => Some(self.take_made()?),
            Stop::Call => None,
            stop => return Err(unexpected(format_args!("a call stopped: {stop:?}"))),
        };
        ptrace::setoptions(self.pid, options())?;
        let Some(made) = made else {
            let failed = succeeded(self.registers()?.rax);
            self.return_to(at)?;
            return Err(failed.err().unwrap_or_else(|| unexpected("no process was made")));
        };
        self.run_to_call()?;
        self.return_to(at)?;
        Ok(made)
    }

    /// The process that was just made.
    fn take_made(&self) -> io::Result<Self> {
        let number = ptrace::getevent(self.pid)?;
        let number = i32::try_from(number).map_err(unexpected)?;
        let made = Self {
            pid: Pid::from_raw(number),
            is_let_go: false,
            has_ended: Cell::new(false),
        };
        match made.wait()? {
            Stop::Interrupted => Ok(made),
            stop => Err(unexpected(format_args!("a new process stopped: {stop:?}"))),
        }
    }

    fn begin_instead(&self, at: &Registers, number: c_long, arguments: [u64; 6]) -> io::Result<()> {
        let mut registers = *at;
        registers.orig_rax = number.cast_unsigned();
        set_arguments(&mut registers, arguments);
        ptrace::setregs(self.pid, registers)?;
        Ok(ptrace::syscall(self.pid, None)?)
    }

    /// Goes from the end of a call back to the begin of the one in whose place it was made.
    fn return_to(&self, at: &Registers) -> io::Result<()> {
        let mut again = *at;
        (again.rip, again.rax, again.orig_rax) = (at.rip - CALL_BYTES, at.orig_rax, NO_CALL);
        ptrace::setregs(self.pid, again)?;
        self.run_to_call()?;
        // Code of the user can have the kernel go to another place, by a restartable sequence.
        self.is_at_begin_of(at.orig_rax, at.rip)
    }

    /// Ends the process if it is not at the begin of this call, whose instruction ends at `rip`.
    fn is_at_begin_of(&self, number: u64, rip: u64) -> io::Result<()> {
        let (info, now) = (ptrace::syscall_info(self.pid)?, self.registers()?);
        let is_begin = info.op == libc::PTRACE_SYSCALL_INFO_ENTRY && info.arch == MACHINE;
        if is_begin && (now.rip, now.orig_rax) == (rip, number) {
            return Ok(());
        }
        self.kill();
        Err(unexpected(format_args!(
            "the process {} went elsewhere, and was ended",
            self.pid
        )))
    }

    /// Has the call fail, at whose begin the process stands.
    pub(super) fn fail(&self, at: &Registers, error: Errno) -> io::Result<()> {
        let mut registers = *at;
        registers.orig_rax = NO_CALL;
        ptrace::setregs(self.pid, registers)?;
        self.run_to_call()?;
        let mut registers = self.registers()?;
        registers.rax = i64::from(-(error as i32)).cast_unsigned();
        Ok(ptrace::setregs(self.pid, registers)?)
    }

    /// Has the process run from `rip`.
    pub(super) fn go(&self, registers: &Registers) -> io::Result<()> {
        let mut registers = *registers;
        registers.orig_rax = NO_CALL;
        ptrace::setregs(self.pid, registers)?;
        Ok(ptrace::cont(self.pid, None)?)
    }

    /// Waits until a signal stops the process. If it makes another process on its way, returns that one, which has made no step.
    pub(super) fn arrive(&self) -> io::Result<Option<Self>> {
        let mut made = None;
        loop {
            match self.wait()? {
                Stop::Signal(Signal::SIGSTOP) => return Ok(made),
                Stop::Forked if made.is_none() => made = Some(self.take_made()?),
                stop => return Err(unexpected(format_args!("the calls of a copy stopped: {stop:?}"))),
            }
            ptrace::cont(self.pid, None)?;
        }
    }

    /// Has a process make a call. `at` are registers at the end of a call, of which only the instruction's address is taken.
    pub(super) fn call(&self, at: &Registers, number: c_long, arguments: [u64; 6]) -> io::Result<u64> {
        let mut registers = *at;
        (registers.rip, registers.rax, registers.orig_rax) = (at.rip - CALL_BYTES, number.cast_unsigned(), NO_CALL);
        set_arguments(&mut registers, arguments);
        ptrace::setregs(self.pid, registers)?;
        self.run_to_call()?;
        // Code of the user may have changed the instruction, or had the kernel do so.
        self.is_at_begin_of(number.cast_unsigned(), at.rip)?;
        self.run_to_call()?;
        succeeded(self.registers()?.rax)
    }

    /// Runs to the begin or to the end of a call.
    fn run_to_call(&self) -> io::Result<()> {
        ptrace::syscall(self.pid, None)?;
        match self.wait()? {
            Stop::Call => Ok(()),
            stop => Err(unexpected(format_args!("a call stopped: {stop:?}"))),
        }
    }

    /// Has the filter of the process hold again.
    pub(super) fn filter_again(&self) -> io::Result<()> {
        Ok(ptrace::setoptions(self.pid, options())?)
    }

    /// Lets the process go on at the end of its call, with this result.
    pub(super) fn let_go_with(self, at: &Registers, result: u64) -> io::Result<()> {
        let mut registers = *at;
        (registers.rax, registers.orig_rax) = (result, NO_CALL);
        self.let_go_at(&registers)
    }

    /// Lets the process go on with these registers. Its filter holds again.
    pub(super) fn let_go_at(mut self, registers: &Registers) -> io::Result<()> {
        let mut registers = *registers;
        registers.orig_rax = NO_CALL;
        ptrace::setregs(self.pid, registers)?;
        ptrace::setoptions(self.pid, options())?;
        ptrace::detach(self.pid, None)?;
        self.is_let_go = true;
        Ok(())
    }
}

fn set_arguments(registers: &mut Registers, arguments: [u64; 6]) {
    [
        registers.rdi,
        registers.rsi,
        registers.rdx,
        registers.r10,
        registers.r8,
        registers.r9,
    ] = arguments;
}

/// The result of a call, or its error.
pub(super) fn succeeded(result: u64) -> io::Result<u64> {
    match result.cast_signed() {
        error @ -4095..=-1 => Err(io::Error::from_raw_os_error(i32::try_from(-error).unwrap_or_default())),
        _ => Ok(result),
    }
}
