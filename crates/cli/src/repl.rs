//! The command `repl`: reads cells from the terminal, and keeps their variables.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use rustyline::error::ReadlineError;
use rustyline::{Cmd, DefaultEditor, EventHandler, KeyCode, KeyEvent, Modifiers};

use crate::run::execute;
use crate::sandbox::SandboxArgs;
use sandglass_host::Execution;
use sandglass_host::complete::goes_on;

/// `sandglass-host repl`: reads statements as Python's own REPL does, and runs each as a cell. Ctrl-C interrupts the running
/// cell; Ctrl-D leaves.
///
/// # Errors
/// There is no guest, or no terminal to read from.
pub async fn repl(args: SandboxArgs) -> Result<u8, String> {
    let sandbox = args.sandbox().await?;
    if io::stdin().is_terminal() {
        let told = sandbox.capabilities();
        eprintln!(
            "Python {} on {}. An empty line ends a block, Ctrl-C interrupts, Ctrl-D or exit() leaves.",
            told.python.unwrap_or_default(),
            told.backend
        );
    }
    let mut editor = DefaultEditor::new().map_err(unreadable)?;
    // rustyline's default for this key is completion, and there is none here.
    let tab = EventHandler::Simple(Cmd::Insert(1, "    ".to_owned()));
    editor.bind_sequence(KeyEvent(KeyCode::Tab, Modifiers::NONE), tab);
    loop {
        let read;
        (editor, read) = tokio::task::spawn_blocking(move || {
            let read = cell(&mut editor);
            (editor, read)
        })
        .await
        .map_err(unreadable)?;
        match read {
            Ok(code) if matches!(code.trim(), "exit" | "exit()" | "quit" | "quit()") => break,
            Ok(code) if code.trim().is_empty() => {}
            Ok(code) => match execute(&sandbox, code).await {
                Ok(run) => end_line(&run),
                Err(why) => eprintln!("sandglass-host: {why}"),
            },
            Err(ReadlineError::Interrupted) => eprintln!("KeyboardInterrupt"),
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(unreadable(error)),
        }
    }
    sandbox.destroy().await;
    Ok(0)
}

fn unreadable(error: impl Display) -> String {
    format!("lines cannot be read: {error}")
}

/// Reads a line, and further lines as long as Python expects more.
fn cell(editor: &mut DefaultEditor) -> Result<String, ReadlineError> {
    let mut code = editor.readline(">>> ")?;
    while goes_on(&code) {
        match editor.readline("... ") {
            Ok(line) => {
                code.push('\n');
                code.push_str(&line);
            }
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(error),
        }
    }
    // Without history the user can type the code again.
    let _ = editor.add_history_entry(code.trim_end());
    Ok(code)
}

/// Ends an open line of output, because the prompt would be written over that line.
fn end_line(run: &Execution) {
    let ends_in_own_line = run.result.is_some() || run.final_answer.is_some() || run.error.is_some();
    let is_open = |text: &str| !text.is_empty() && !text.ends_with('\n');
    let mut out = io::stdout();
    if !ends_in_own_line && (is_open(&run.stdout) || is_open(&run.stderr)) && out.is_terminal() {
        // Nobody may be reading the output any more, which is no failure.
        let _ = out.write_all(b"\n");
    }
}
