//! Notebooks: cells over a [`Sandbox`], and two files for each run of a cell.
//!
//! The files are in the workspace's folder [`CELLS_FOLDER`]. `<cell>_input.pkl` describes the state before a cell, and
//! `<cell>_output.pkl` its outcome. They are pickles that the guest makes (`python/sandglass/state/cell_files.py`). The host
//! stores them unread, and guests cannot see them. `sandglass-host cell FILE` shows such a file in a sandbox.

use std::collections::HashMap;
use std::sync::Arc;

use rustix::fs::{AtFlags, Dir, Mode, unlinkat};
use rustix::io::Errno;
use sandglass_core::Error;
pub use sandglass_core::session::CellFile;
use serde_json::json;

use crate::sandbox::{ExecuteOptions, Execution, Sandbox, SandboxBuilder};
use crate::value::Value;
use crate::workspace::{CELLS_FOLDER, Workspace, put};

/// Bytes of the variables in one file.
const MAX_VALUES_BYTES: u64 = 64 << 20;
/// The largest file, in bytes. Sources and results come on top of the variables.
const MAX_FILE_BYTES: u64 = 96 << 20;
/// Bytes of all files of a notebook.
const MAX_FILES_BYTES: u64 = 1 << 30;
/// Cells of a notebook.
const MAX_CELLS: usize = 10_000;
/// Characters of a cell's name.
const MAX_NAME: usize = 64;
const FILES: [CellFile; 2] = [CellFile::Input, CellFile::Output];

/// Cells that run one after the other and share their variables.
#[derive(Debug)]
pub struct Notebook {
    workspace: Arc<Workspace>,
    builder: SandboxBuilder,
    sandbox: Option<Sandbox>,
    cells: Vec<Cell>,
    last_number: u64,
    /// Bytes of the files of each cell.
    kept: HashMap<String, u64>,
}

/// A cell.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    /// The name of the cell, from which its files are named.
    pub id: String,
    /// The cell's source.
    pub code: String,
    /// The outcome of the last run; `None` when the sandbox could not run the cell.
    pub execution: Option<Execution>,
    /// The number of runs.
    pub runs: u32,
    /// The cell's missing files, each with the reason.
    pub missing: Vec<String>,
}

impl Notebook {
    /// A notebook without cells, in a workspace. `builder` makes its sandbox when the first cell is run; do not set a workspace
    /// there.
    ///
    /// # Errors
    /// [`Error::File`] when the workspace cannot be used.
    pub fn new(workspace: Workspace, builder: SandboxBuilder) -> Result<Self, Error> {
        let folder = workspace.cells_folder().map_err(failed)?;
        let mut last_number = 0;
        let mut kept = HashMap::new();
        for entry in Dir::read_from(&folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            let cell = FILES.iter().find_map(|file| name.strip_suffix(&suffix(*file)));
            let Some(cell) = cell else { continue };
            let stat = rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
            *kept.entry(cell.to_owned()).or_default() += u64::try_from(stat.st_size).unwrap_or_default();
            // New cells get higher numbers than the files of earlier notebooks, so those files stay.
            let number = cell.strip_prefix("cell_").and_then(|number| number.parse().ok());
            last_number = last_number.max(number.unwrap_or_default());
        }
        Ok(Self {
            builder: builder.in_workspace(&workspace),
            workspace: Arc::new(workspace),
            sandbox: None,
            cells: Vec::new(),
            last_number,
            kept,
        })
    }

    /// The workspace of the notebook.
    pub fn workspace(&self) -> &Workspace {
        &self.workspace
    }

    /// The notebook's cells, in order.
    pub fn cells(&self) -> &[Cell] {
        &self.cells
    }

    /// The cell of this name.
    pub fn cell(&self, id: &str) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.id == id)
    }

    /// The sandbox that runs the cells, made now if there is none.
    ///
    /// # Errors
    /// As [`SandboxBuilder::build`].
    pub async fn sandbox(&mut self) -> Result<Sandbox, Error> {
        if let Some(sandbox) = &self.sandbox {
            return Ok(sandbox.clone());
        }
        // The folder must exist when the guest starts, so that another one can be mounted over it.
        let workspace = self.workspace.clone();
        on_disk(move || workspace.cells_folder().map(drop)).await?;
        let sandbox = self.builder.clone().build().await?;
        // Nothing runs before there is a context.
        sandbox.initialize(Value::None).await?;
        self.sandbox = Some(sandbox.clone());
        Ok(sandbox)
    }

    /// Adds a cell at the end, and runs it.
    ///
    /// # Errors
    /// The sandbox cannot run code. The cell is added all the same.
    pub async fn run(&mut self, code: impl Into<String>) -> Result<&Cell, Error> {
        self.run_with(None, code, ExecuteOptions::default()).await
    }

    /// Runs `code` as the cell of this name. An unknown name makes a new cell at the end.
    ///
    /// # Errors
    /// As [`Notebook::run`]. [`Error::InvalidOption`] for an invalid name.
    pub async fn run_as(&mut self, id: &str, code: impl Into<String>) -> Result<&Cell, Error> {
        self.run_with(Some(id), code, ExecuteOptions::default()).await
    }

    /// Runs `code` with options, as the cell of this name, or else as a new cell. Dropping the future interrupts the code.
    ///
    /// # Errors
    /// As [`Notebook::run_as`].
    pub async fn run_with(
        &mut self,
        id: Option<&str>,
        code: impl Into<String>,
        options: ExecuteOptions,
    ) -> Result<&Cell, Error> {
        let new = format!("cell_{}", self.last_number + 1);
        let id = id.unwrap_or(&new);
        check_name(id)?;
        let code = code.into();
        let at = match self.cells.iter().position(|cell| cell.id == id) {
            Some(at) => {
                self.cells[at].code = code;
                at
            }
            None if self.cells.len() == MAX_CELLS => {
                return Err(Error::invalid(
                    "cell",
                    format!("a notebook has at most {MAX_CELLS} cells"),
                ));
            }
            None => {
                let number = id.strip_prefix("cell_").and_then(|number| number.parse().ok());
                self.last_number = self.last_number.max(number.unwrap_or_default());
                self.cells.push(Cell {
                    id: id.to_owned(),
                    code,
                    execution: None,
                    runs: 0,
                    missing: Vec::new(),
                });
                self.cells.len() - 1
            }
        };
        self.run_at(at, options).await
    }

    /// Runs a cell again, with the current variables.
    ///
    /// # Errors
    /// As [`Notebook::run`]. [`Error::InvalidOption`] when there is no such cell.
    pub async fn rerun(&mut self, id: &str) -> Result<&Cell, Error> {
        self.rerun_with(id, ExecuteOptions::default()).await
    }

    /// Runs a cell again, with options. Dropping the future interrupts the code.
    ///
    /// # Errors
    /// As [`Notebook::rerun`].
    pub async fn rerun_with(&mut self, id: &str, options: ExecuteOptions) -> Result<&Cell, Error> {
        let at = self.position(id)?;
        self.run_at(at, options).await
    }

    async fn run_at(&mut self, at: usize, options: ExecuteOptions) -> Result<&Cell, Error> {
        let Cell { id, code, .. } = self.cells[at].clone();
        self.cells[at].execution = None;
        self.cells[at].missing.clear();
        self.remove_files(&id).await?;
        let sandbox = self.sandbox().await?;
        let about = json!({
            "code": code,
            "user": self.workspace.user(),
            "session": self.workspace.session(),
            "workspace": self.workspace.path().to_string_lossy(),
        });
        self.keep(at, &sandbox, CellFile::Input, about).await?;
        let execution = sandbox.execute_with(code, options).await?;
        self.cells[at].runs += 1;
        let about = json!({ "result": execution });
        self.cells[at].execution = Some(execution);
        self.keep(at, &sandbox, CellFile::Output, about).await?;
        Ok(&self.cells[at])
    }

    /// Lets the guest make a file, and stores it. If the guest fails, only the file is missing.
    async fn keep(
        &mut self,
        at: usize,
        sandbox: &Sandbox,
        file: CellFile,
        mut about: serde_json::Value,
    ) -> Result<(), Error> {
        let left = MAX_FILES_BYTES.saturating_sub(self.kept.values().sum());
        about["maxBytes"] = left.min(MAX_VALUES_BYTES).into();
        let made = match sandbox.cell_file(file, about.to_string().into_bytes()).await {
            Ok(bytes) if bytes.len() as u64 > left.min(MAX_FILE_BYTES) => Err(format!(
                "it has {} bytes, and there is room for {}: delete other cells",
                bytes.len(),
                left.min(MAX_FILE_BYTES)
            )),
            Ok(bytes) => Ok(bytes),
            Err(error @ (Error::Destroyed | Error::BootFailed(_))) => return Err(error),
            Err(error) => Err(error.to_string()),
        };
        let id = self.cells[at].id.clone();
        let name = format!("{id}{}", suffix(file));
        match made {
            Ok(bytes) => {
                *self.kept.entry(id).or_default() += bytes.len() as u64;
                let workspace = self.workspace.clone();
                let mode = Mode::RUSR | Mode::WUSR;
                on_disk(move || put(&workspace.cells_folder()?, &name, &bytes, mode, None)).await
            }
            Err(why) => {
                self.cells[at].missing.push(format!("{name}: {why}"));
                Ok(())
            }
        }
    }

    /// The bytes of one of a cell's files, also of a cell of an earlier notebook. They are a pickle of the guest's: never load it outside
    /// of a sandbox.
    ///
    /// # Errors
    /// [`Error::FileNotFound`] when there is no such file, [`Error::InvalidOption`] for an invalid name.
    pub async fn file(&self, id: &str, file: CellFile) -> Result<Vec<u8>, Error> {
        check_name(id)?;
        let name = format!("{id}{}", suffix(file));
        let workspace = Arc::clone(&self.workspace);
        let path = format!("{CELLS_FOLDER}/{name}");
        match on_disk(move || workspace.read_cells_file(&name, MAX_FILE_BYTES)).await? {
            Some(bytes) => Ok(bytes),
            None => Err(Error::FileNotFound(path)),
        }
    }

    /// Removes a cell and its files. The cell's changes to variables stay.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] when there is no such cell.
    pub async fn delete_cell(&mut self, id: &str) -> Result<(), Error> {
        let at = self.position(id)?;
        self.remove_files(id).await?;
        self.cells.remove(at);
        Ok(())
    }

    /// Starts over: all cells, the folder with all files of cells, and the variables are gone. The other files of the workspace stay.
    ///
    /// # Errors
    /// [`Error::File`], when the folder cannot be removed.
    pub async fn clear(&mut self) -> Result<(), Error> {
        // A guest would see the next folder of this name, which nothing is put over.
        if let Some(sandbox) = self.sandbox.take() {
            sandbox.destroy().await;
        }
        self.cells.clear();
        self.kept.clear();
        self.last_number = 0;
        let workspace = self.workspace.clone();
        on_disk(move || workspace.remove_cells_folder()).await
    }

    /// Ends the sandbox. The files stay. Others can use the workspace after the notebook is dropped.
    pub async fn close(mut self) {
        if let Some(sandbox) = self.sandbox.take() {
            sandbox.destroy().await;
        }
    }

    fn position(&self, id: &str) -> Result<usize, Error> {
        let at = self.cells.iter().position(|cell| cell.id == id);
        at.ok_or_else(|| Error::invalid("cell", format!("there is no cell \"{id:.64}\"")))
    }

    async fn remove_files(&mut self, id: &str) -> Result<(), Error> {
        self.kept.remove(id);
        let workspace = self.workspace.clone();
        let names = FILES.map(|file| format!("{id}{}", suffix(file)));
        on_disk(move || {
            let folder = workspace.cells_folder()?;
            for name in names {
                match unlinkat(&folder, name, AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        })
        .await
    }
}

fn suffix(file: CellFile) -> String {
    format!("_{}.pkl", file.name())
}

fn check_name(id: &str) -> Result<(), Error> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if (1..=MAX_NAME).contains(&id.len()) && id.bytes().all(fits) {
        return Ok(());
    }
    let what = format!("\"{id:.64}\" is no cell's name: 1 to {MAX_NAME} letters, digits, \"_\" or \"-\"");
    Err(Error::invalid("cell", what))
}

fn failed(error: Errno) -> Error {
    Error::File(format!("{CELLS_FOLDER}, the folder of the cells' files: {error}"))
}

/// Runs work that blocks on the disk.
async fn on_disk<T: Send + 'static>(work: impl FnOnce() -> rustix::io::Result<T> + Send + 'static) -> Result<T, Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(failed),
        Err(error) => Err(Error::File(error.to_string())),
    }
}
