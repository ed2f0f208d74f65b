//! The command `sandglass-host cell`, which prints the value in a file that a notebook's cell wrote.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use sandglass_core::{Error, Limits};

use crate::show::clean;
use sandglass_host::args::GuestArgs;
use sandglass_host::sandbox::{Execution, Sandbox};
use sandglass_host::value::Value;
use sandglass_jupyter::KernelSettings;

/// The largest file that is shown, in bytes.
const MAX_FILE_BYTES: u64 = 256 << 20;
/// The code that opens the file. Loading a pickle can run any code, so this happens in a sandbox.
const SHOW: &str = "from sandglass.state.cell_files import show; show('cell.pkl')";

/// Shows the value in a file that a notebook's cell wrote.
///
/// The file is opened in a sandbox, because opening it can run any code. Exits with 0, or with 1 if the file cannot be shown.
#[derive(Debug, Clone, Args)]
pub struct CellArgs {
    /// The file: `<cell>_input.pkl` or `<cell>_output.pkl`.
    pub file: PathBuf,
    /// The sandbox where the file is opened. It needs the packages whose values the file holds.
    #[command(flatten)]
    pub guest: GuestArgs,
}

/// Runs the command.
pub async fn main(args: CellArgs) -> ExitCode {
    let shown = match show(&args).await {
        Ok(shown) => shown,
        Err(error) => {
            let _ = writeln!(io::stderr(), "sandglass-host cell: {error}");
            return ExitCode::FAILURE;
        }
    };
    // The whole text comes from the file, which may contain control codes for a terminal.
    let _ = write!(io::stdout(), "{}", clean(&shown.run.stdout, usize::MAX));
    let _ = write!(io::stderr(), "{}", clean(&shown.run.stderr, usize::MAX));
    match &shown.run.error {
        None => ExitCode::SUCCESS,
        Some(error) => {
            let error = clean(error, 4_000);
            let _ = writeln!(io::stderr(), "sandglass-host cell: the file cannot be shown: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Opens a file in a new sandbox, and destroys the sandbox before it returns.
pub async fn show(args: &CellArgs) -> Result<Execution, Error> {
    let bytes = read(&args.file)
        .map_err(|error| Error::invalid("file", format!("{} cannot be read: {error}", args.file.display())))?;
    let mut limits = Limits::default();
    limits.set("maxOutputLength", 1_000_000.0)?;
    let sandbox = Sandbox::builder()
        .backend(args.guest.backend)
        .settings(args.guest.settings())
        .kernel(KernelSettings::default())
        .limits(limits)
        .build()
        .await?;
    let shown = async {
        sandbox.initialize(Value::None).await?;
        sandbox.write_file("cell.pkl", bytes).await?;
        sandbox.execute(SHOW).await
    };
    let shown = shown.await;
    sandbox.destroy().await;
    shown
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::other(format!("it has more than {MAX_FILE_BYTES} bytes")));
    }
    Ok(bytes)
}
