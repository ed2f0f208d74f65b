//! `sandglass-host repl` run as a user runs it: in a terminal, and behind a pipe.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// A terminal with the program in it. Python makes the terminal, because a process cannot easily get one itself.
struct Terminal {
    python: Child,
    keys: ChildStdin,
    screen: Receiver<Vec<u8>>,
    /// The text shown since the last check.
    shown: String,
}

impl Terminal {
    fn new(backend: &str) -> Self {
        let spawn = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))";
        let mut python = Command::new("python3")
            .args([
                "-c",
                spawn,
                env!("CARGO_BIN_EXE_sandglass-host"),
                "repl",
                "--backend",
                backend,
            ])
            .env("TERM", "xterm")
            .env_remove("SANDGLASS_PYTHON")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (keys, mut stdout) = (python.stdin.take().unwrap(), python.stdout.take().unwrap());
        let (send, screen) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = stdout.read(&mut bytes) {
                if send.send(bytes[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        let mut terminal = Self {
            python,
            keys,
            screen,
            shown: String::new(),
        };
        terminal.sees(">>> ");
        terminal
    }

    /// Waits until the program shows this text. Returns the text before it.
    fn sees(&mut self, text: &str) -> String {
        loop {
            if let Some(at) = self.shown.find(text) {
                let rest = self.shown.split_off(at + text.len());
                let mut before = std::mem::replace(&mut self.shown, rest);
                before.truncate(at);
                return before;
            }
            match self.screen.recv_timeout(Duration::from_secs(60)) {
                Ok(bytes) => self.shown.push_str(&String::from_utf8_lossy(&bytes)),
                Err(why) => panic!("{text:?} is not shown, but {:?}: {why}", self.shown),
            }
        }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Types lines, each when its prompt is there.
    fn types(&mut self, lines: &[&str]) {
        let mut lines = lines.iter().peekable();
        while let Some(line) = lines.next() {
            self.press(&format!("{line}\r"));
            if lines.peek().is_some() {
                self.sees("\n");
                self.sees("... ");
            }
        }
    }

    /// Presses this key to leave. Returns the program's exit status.
    fn leaves(mut self, key: &str) -> Option<i32> {
        self.press(key);
        self.python.wait().unwrap().code()
    }
}

#[test]
fn the_repl_takes_what_pythons_own_takes() {
    let mut terminal = Terminal::new("subprocess");
    terminal.types(&["6 * 7"]);
    terminal.sees("\n42\r\n");
    terminal.sees(">>> ");
    terminal.types(&["text = '''one", "", "def'''; len(text)"]);
    terminal.sees("\n8\r\n");
    terminal.sees(">>> ");
    terminal.types(&["total = sum([1,", "", "2])"]);
    terminal.sees(">>> ");
    terminal.types(&["import functools"]);
    terminal.sees(">>> ");
    terminal.types(&[
        "@functools.cache",
        "def twice(x):",
        "\tif x:  # a tab indents",
        "\t\treturn \\",
        "2 * x",
        "",
    ]);
    terminal.sees(">>> ");
    terminal.types(&["twice(total) * 100"]);
    terminal.sees("\n600\r\n");
    terminal.sees(">>> ");
    // Terminals send pasted text all at once, and mark it. The empty lines in it end no block.
    terminal.press("\x1b[200~def f(x):\r    y = x + 1\r\r    return y\r\r\rz = f(70)\rz\x1b[201~\r");
    terminal.sees("\n71\r\n");
    terminal.sees(">>> ");
    // Output of code does not control the terminal.
    terminal.types(&["display({'a': 1}); print('\\x1b]0;title\\x07')"]);
    terminal.sees("\n{'a': 1}\r\n");
    terminal.sees("\u{fffd}]0;title\u{fffd}\r\n");
    terminal.sees(">>> ");
    terminal.types(&["1 / 0"]);
    terminal.sees("\nZeroDivisionError: division by zero\r\n");
    terminal.sees(">>> ");
    terminal.types(&["don't"]);
    terminal.sees("\nSyntaxError: ");
    terminal.sees(">>> ");
    // The prompt is not written over the open line.
    terminal.types(&["print('no' + 'line', end='')"]);
    terminal.sees("\nnoline\r\n");
    terminal.sees(">>> ");
    assert_eq!(terminal.leaves("exit()\r"), Some(0));
}

#[test]
fn ctrl_c_interrupts_and_keeps_the_variables() {
    for backend in ["subprocess", "bubblewrap"] {
        let mut terminal = Terminal::new(backend);
        terminal.types(&["def spin():", "    while True: pass", ""]);
        terminal.sees(">>> ");
        for _ in 0..2 {
            terminal.types(&["x = 'ke' + 'pt'; print('spin' + 'ning'); spin()"]);
            terminal.sees("\nspinning\r\n");
            terminal.press("\x03");
            let before = terminal.sees("\nKeyboardInterrupt: interrupted; variables are kept\r\n");
            assert!(
                before.contains("in spin") && !before.contains("KeyboardInterrupt"),
                "{before}"
            );
            terminal.sees(">>> ");
            terminal.types(&["x"]);
            terminal.sees("\n'kept'\r\n");
            terminal.sees(">>> ");
        }
        // Ctrl-C drops a half-typed block.
        terminal.types(&["if x:", "    x = 1"]);
        terminal.sees("\n");
        terminal.sees("... ");
        terminal.press("\x03");
        terminal.sees("\nKeyboardInterrupt\r\n");
        terminal.sees(">>> ");
        terminal.types(&["x"]);
        terminal.sees("\n'kept'\r\n");
        terminal.sees(">>> ");
        assert_eq!(terminal.leaves("\x04"), Some(0));
    }
}

#[test]
fn the_repl_reads_what_is_piped_to_it() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_sandglass-host"))
        .args(["repl", "--backend", "subprocess"])
        .env_remove("SANDGLASS_PYTHON")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let code = b"x = 1\nif x:\n    print('block')\n\nx + 1\nfor i in range(2):\n    print(i)";
    child.stdin.take().unwrap().write_all(code).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (out, err) = (text(output.stdout), text(output.stderr));
    let rest: Vec<_> = err.lines().filter(|line| !line.starts_with(" WARN ")).collect();
    let told = (output.status.code(), out.as_str(), rest);
    assert_eq!(told, (Some(0), "block\n2\n0\n1\n", Vec::new()));
}
