//! The methods `notebook.*`, for sandboxes that were created with `notebook`.

use std::collections::BTreeMap;

use sandglass_core::execution::Outcome;
use sandglass_host::notebook::CellFile;
use serde::{Deserialize, Serialize};

use super::Executed;

/// Parameters of `notebook.run`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RunCell {
    /// The id that `create` returned.
    pub sandbox: String,
    /// The cell's name. A new name makes a cell at the end. Without a name, the cell is `cell_N`.
    #[serde(default)]
    pub cell: Option<String>,
    /// The source of the cell, which replaces an earlier one. Without it, the cell is run again.
    #[serde(default)]
    pub code: Option<String>,
    /// The timeout of guest time, instead of the sandbox's.
    #[serde(default)]
    pub timeout: Option<f64>,
    /// The execution's share of the sandbox's budget, as of `execute`.
    #[serde(default)]
    pub budget: BTreeMap<String, f64>,
    /// True if `output` and `display` notifications shall tell what is printed and shown, as it comes.
    #[serde(default)]
    pub stream: bool,
}

/// Parameters of `notebook.delete`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OfCell {
    /// The id that `create` returned.
    pub sandbox: String,
    /// The cell's name.
    pub cell: String,
}

/// Parameters of `notebook.file`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OfCellFile {
    /// The id that `create` returned.
    pub sandbox: String,
    /// The cell's name.
    pub cell: String,
    /// The file.
    pub file: CellFileName,
}

/// One of a cell's two files.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum CellFileName {
    /// The state before the cell ran.
    Input,
    /// The outcome of the cell.
    Output,
}

impl From<CellFileName> for CellFile {
    fn from(name: CellFileName) -> Self {
        match name {
            CellFileName::Input => Self::Input,
            CellFileName::Output => Self::Output,
        }
    }
}

/// A cell.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CellInfo {
    /// The cell's name, from which its files are named.
    pub id: String,
    /// The cell's source.
    pub code: String,
    /// The number of runs.
    pub runs: u32,
    /// The cell's missing files, each with the reason.
    pub missing: Vec<String>,
    /// The outcome of the last run. Missing if the sandbox could not run the cell.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub outcome: Option<Outcome>,
}

/// The result of `notebook.run`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RanCell {
    /// The cell.
    pub cell: CellInfo,
    /// The result of the run, as of `execute`.
    pub execution: Option<Executed>,
}

/// The result of `notebook.cells`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AllCells {
    /// The cells in order.
    pub cells: Vec<CellInfo>,
}
