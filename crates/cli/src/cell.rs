//! `sandglass-host cell`: shows what is in a file of a cell.

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

/// Bytes of a file that is shown.
const MAX_FILE_BYTES: u64 = 256 << 20;
/// The code that runs in the sandbox. Loading a pickle may do anything, there.
const SHOW: &str = "from sandglass.state.cell_files import show; show('cell.pkl')";

/// Show what is in a file of a notebook's cell. It is opened in a sandbox: whatever it does, it does there.
#[derive(Debug, Clone, Args)]
pub struct CellArgs {
    /// The file: `<cell>_input.pkl` or `<cell>_output.pkl`.
    pub file: PathBuf,
    /// The place where it is opened. Values of packages can be loaded only where those are installed, as they were for the notebook.
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
    // All of it is the file's, and it may be made to fool a terminal.
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

/// Opens a file in a sandbox of its own, which is gone when this returns.
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
