//! Processes that are traced (`ptrace`). All functions of a process are called by the thread that traces it. A process that is not let go ends.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::process::process_of;

/// A stopped process that this thread traces. Dropping it ends the process, and waits for that. The first process of a namespace ends after all
/// others there, so drop those before.
pub(super) struct Traced {
    pub(super) pid: Pid,
    pub(super) is_let_go: bool,
    /// True once its end was taken note of. Its number may be another process's then.
    pub(super) has_ended: Cell<bool>,
}

/// The reason for which a process has stopped.
#[derive(Debug, PartialEq)]
pub(super) enum Stop {
    /// The begin or the end of a call.
    Call,
    /// The process has made another one.
    Forked,
    /// It was interrupted by its tracer, or has just been made.
    Interrupted,
    Signal(Signal),
}

pub(super) fn options() -> Options {
    Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_TRACEFORK | Options::PTRACE_O_EXITKILL
}

pub(super) fn unexpected(what: impl std::fmt::Display) -> io::Error {
    io::Error::other(what.to_string())
}

impl Traced {
    /// Stops a process, even one that waits in a call. A process that a signal has stopped stays so.
    pub(super) fn seize(process: &OwnedFd) -> io::Result<Self> {
        let gone = || unexpected("the process has ended");
        let pid = process_of(process).ok_or_else(gone)?;
        let mut traced = Self {
            pid: Pid::from_raw(pid.cast_signed()),
            is_let_go: true,
            has_ended: Cell::new(false),
        };
        // Without an option that ends the process: until it is seized, its number may become that of another one.
        ptrace::seize(traced.pid, Options::empty())?;
        if process_of(process) != Some(pid) {
            ptrace::interrupt(traced.pid)?;
            traced.wait()?;
            ptrace::detach(traced.pid, None)?;
            return Err(gone());
        }
        traced.is_let_go = false;
        ptrace::interrupt(traced.pid)?;
        traced.wait()?;
        ptrace::setoptions(traced.pid, options())?;
        Ok(traced)
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid.as_raw().cast_unsigned()
    }

    /// Waits until the process stops.
    ///
    /// # Errors
    /// It has ended, or a signal that has no name has stopped it.
    pub(super) fn wait(&self) -> io::Result<Stop> {
        loop {
            match waitpid(self.pid, Some(WaitPidFlag::__WALL)) {
                Err(Errno::EINTR) => {}
                Err(error) => {
                    // Real-time signals have no names. One may have stopped the process, or ended it.
                    let again = waitpid(self.pid, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG));
                    let has_ended = matches!(
                        again,
                        Err(Errno::ECHILD) | Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..))
                    );
                    self.has_ended.set(has_ended);
                    return Err(error.into());
                }
                Ok(WaitStatus::PtraceSyscall(_)) => return Ok(Stop::Call),
                Ok(WaitStatus::PtraceEvent(_, _, libc::PTRACE_EVENT_FORK)) => return Ok(Stop::Forked),
                Ok(WaitStatus::PtraceEvent(..)) => return Ok(Stop::Interrupted),
                Ok(WaitStatus::Stopped(_, signal)) => return Ok(Stop::Signal(signal)),
                Ok(_) => {
                    self.has_ended.set(true);
                    return Err(unexpected(format_args!("the process {} has ended", self.pid)));
                }
            }
        }
    }

    /// Lets the process go, stopped by a signal.
    pub(super) fn let_go_stopped(mut self) -> io::Result<()> {
        self.signal(Signal::SIGSTOP)?;
        ptrace::detach(self.pid, None)?;
        self.is_let_go = true;
        Ok(())
    }

    pub(super) fn kill(&self) {
        let _ = self.signal(Signal::SIGKILL); // it may have ended
    }

    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        match self.has_ended.get() {
            true => Err(unexpected(format_args!("the process {} has ended", self.pid))),
            false => Ok(kill(self.pid, signal)?),
        }
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        if self.is_let_go {
            return;
        }
        self.kill();
        // Stops that were under way may come before the end.
        while !self.has_ended.get() {
            let _ = self.wait();
        }
    }
}
