//! Notebooks: the methods `notebook.*`.

use std::sync::Arc;

use sandglass_host::Sandbox;
use sandglass_host::notebook::{Cell, Notebook};
use sandglass_host::sandbox::ExecuteOptions;
use sandglass_host::{Error, Value};
use tokio::sync::Mutex;

use crate::blobs::Named;
use crate::connection::{Keeper, lock};
use crate::messages::{
    AllCells, CellInfo, Empty, Id, OfCell, OfCellFile, OfSandbox, RanCell, RpcError, RunCell, Valued, budget_of,
};
use crate::methods::Context;
use crate::sandbox::{ClientSandbox, Turn};

/// The cells of a sandbox.
pub struct Cells {
    notebook: Mutex<Notebook>,
    keep: fn(Sandbox) -> Box<dyn Keeper>,
}

impl Cells {
    /// The cells of a notebook. `keep` makes a keeper for each further sandbox of it.
    pub fn new(notebook: Notebook, keep: fn(Sandbox) -> Box<dyn Keeper>) -> Self {
        Self {
            notebook: Mutex::new(notebook),
            keep,
        }
    }
}

/// A notebook, when it is the turn of a request's work on it.
struct OfNotebook {
    sandbox: Arc<ClientSandbox>,
    cells: Arc<Cells>,
    /// Commands of later requests wait until the work is done.
    _turn: Turn,
}

impl Context {
    async fn notebook(&self, id: &str) -> Result<OfNotebook, RpcError> {
        let (sandbox, turn) = self.turn(id).await?;
        let cells = sandbox.cells.clone().ok_or_else(|| {
            let problem = "sandbox: has no cells: create it with \"notebook\": true";
            RpcError::InvalidParams(problem.to_owned())
        })?;
        Ok(OfNotebook {
            sandbox,
            cells,
            _turn: turn,
        })
    }

    pub(crate) async fn run_cell(&self, id: &Id, params: RunCell, _: &mut Named) -> Result<RanCell, RpcError> {
        let RunCell {
            sandbox,
            cell,
            code,
            timeout,
            budget,
            stream,
        } = params;
        let budget = budget_of(&budget)?;
        let executing = self.sandbox(&sandbox)?.executing(id);
        let of = self.notebook(&sandbox).await?;
        let options = ExecuteOptions {
            timeout_ms: timeout,
            budget,
            ..self.execute_options(id, &of.sandbox, &executing, stream)
        };
        let mut notebook = of.cells.notebook.lock().await;
        let cell = match (cell, code) {
            (cell, Some(code)) => notebook.run_with(cell.as_deref(), code, options).await?,
            (Some(cell), None) => notebook.rerun_with(&cell, options).await?,
            (None, None) => {
                return Err(RpcError::InvalidParams(
                    "params: needs code, or the cell to run again".to_owned(),
                ));
            }
        };
        let execution = cell.execution.clone();
        Ok(RanCell {
            cell: info(cell),
            execution: execution.map(|execution| self.executed(&of.sandbox, execution)),
        })
    }

    pub(crate) async fn list_cells(&self, _: &Id, of: OfSandbox, _: &mut Named) -> Result<AllCells, RpcError> {
        let of = self.notebook(&of.sandbox).await?;
        let notebook = of.cells.notebook.lock().await;
        Ok(AllCells {
            cells: notebook.cells().iter().map(info).collect(),
        })
    }

    pub(crate) async fn cell_file(&self, _: &Id, params: OfCellFile, _: &mut Named) -> Result<Valued, RpcError> {
        let of = self.notebook(&params.sandbox).await?;
        let notebook = of.cells.notebook.lock().await;
        let bytes = notebook.file(&params.cell, params.file.into()).await?;
        Ok(Valued {
            value: self.client.put(Value::Bytes(bytes)),
        })
    }

    pub(crate) async fn delete_cell(&self, _: &Id, params: OfCell, _: &mut Named) -> Result<Empty, RpcError> {
        let of = self.notebook(&params.sandbox).await?;
        of.cells.notebook.lock().await.delete_cell(&params.cell).await?;
        Ok(Empty {})
    }

    /// Clears the cells, and the sandbox with them. If the request is cancelled, that goes on to its end: commands would find the old
    /// sandbox otherwise, and cells the new one.
    pub(crate) async fn clear_cells(self: &Arc<Self>, _: &Id, of: OfSandbox, _: &mut Named) -> Result<Empty, RpcError> {
        let id = of.sandbox;
        let of = self.notebook(&id).await?;
        let context = Arc::clone(self);
        let clearing = tokio::spawn(async move { context.clear(&id, of).await });
        let cleared = clearing.await;
        cleared.unwrap_or_else(|error| Err(RpcError::internal(format!("the cells were not cleared: {error}"))))
    }

    async fn clear(&self, id: &str, of: OfNotebook) -> Result<Empty, RpcError> {
        let mut notebook = of.cells.notebook.lock().await;
        let cleared = async {
            notebook.clear().await?;
            notebook.sandbox().await
        };
        let cleared = cleared.await;
        let mut sandboxes = lock(&self.sandboxes);
        let entry = sandboxes.get_mut(id).ok_or(Error::Destroyed)?; // the new sandbox ends with its last handle
        match cleared {
            Ok(sandbox) => {
                let keeper = (of.cells.keep)(sandbox.clone());
                *entry = Arc::new(of.sandbox.renewed(sandbox, keeper));
                Ok(Empty {})
            }
            Err(error) => {
                sandboxes.remove(id); // the old sandbox is gone, and there is no new one
                Err(error.into())
            }
        }
    }
}

fn info(cell: &Cell) -> CellInfo {
    CellInfo {
        id: cell.id.clone(),
        code: cell.code.clone(),
        runs: cell.runs,
        missing: cell.missing.clone(),
        outcome: cell.execution.as_ref().map(|execution| execution.outcome),
    }
}
