//! Notebooks: their cells, the files of cells, and the command `cell` that shows these files.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use sandglass_host::notebook::Notebook;
use sandglass_host::workspace::{CELLS_FOLDER, Workspaces};
use sandglass_host::{BackendKind, Outcome, StateStatus, Value};
use tempfile::TempDir;

use crate::support::{builder, on_both};

on_both!(
    cells_share_variables_and_leave_files,
    a_cell_is_run_again,
    a_cell_that_fails_has_its_files_too,
    a_guest_that_dies_costs_the_variables_only,
    what_cannot_be_written_is_named,
    cells_can_be_removed,
    the_next_notebook_goes_on_counting,
    files_of_cells_are_opened_by_nobody_who_is_not_asked_to,
);

/// A folder of workspaces that guests' users may enter.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

fn notebook(folder: &TempDir, backend: BackendKind) -> Notebook {
    let workspaces = Workspaces::open(folder.path(), None, None).unwrap();
    Notebook::new(workspaces.claim("ann", "s1").unwrap(), builder(backend)).unwrap()
}

fn file(notebook: &Notebook, name: &str) -> PathBuf {
    notebook.workspace().path().join(CELLS_FOLDER).join(name)
}

fn files(notebook: &Notebook) -> Vec<String> {
    let folder = std::fs::read_dir(notebook.workspace().path().join(CELLS_FOLDER)).unwrap();
    let mut names: Vec<_> = folder
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Runs `sandglass-host cell FILE`. Returns true if it succeeded, standard output and standard error.
fn shown(file: &Path, backend: &str) -> (bool, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_sandglass-host"))
        .args(["cell", "--backend", backend])
        .arg(file)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

/// The output of the command, which is to go well.
async fn show(file: PathBuf, backend: BackendKind) -> String {
    let shown = tokio::task::spawn_blocking(move || shown(&file, backend.name()));
    let (succeeded, out, err) = shown.await.unwrap();
    assert!(succeeded, "{err}");
    out
}

async fn cells_share_variables_and_leave_files(backend: BackendKind) {
    let folder = folder();
    let mut notebook = notebook(&folder, backend);
    let cell = notebook.run("import math\nx = [1, 2]\nprint('hi')").await.unwrap();
    assert_eq!(
        (cell.id.as_str(), cell.runs, cell.missing.as_slice()),
        ("cell_1", 1, &[][..])
    );
    assert_eq!(cell.execution.as_ref().unwrap().stdout, "hi\n");
    let cell = notebook
        .run_as("sum", "def f(): return sum(x)\nx.append(3)\nf()")
        .await
        .unwrap();
    assert_eq!(cell.execution.as_ref().unwrap().result.as_deref(), Some("6"));
    let ids: Vec<_> = notebook.cells().iter().map(|cell| cell.id.as_str()).collect();
    assert_eq!(ids, ["cell_1", "sum"]);
    let names = [
        "cell_1_input.pkl",
        "cell_1_output.pkl",
        "sum_input.pkl",
        "sum_output.pkl",
    ];
    assert_eq!(files(&notebook), names);
    for name in names {
        let mode = std::fs::metadata(file(&notebook, name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let input = show(file(&notebook, "sum_input.pkl"), backend).await;
    for part in [
        "user: 'ann'",
        "session: 's1'",
        "namespace:\n    context = None  (NoneType)\n    x = [1, 2]  (list)\n",
        "    import math\n",
        "x.append(3)\n",
    ] {
        assert!(input.contains(part), "{part:?} is not in {input}");
    }
    let output = show(file(&notebook, "sum_output.pkl"), backend).await;
    for part in [
        "id: 2",
        "outcome: 'ok'",
        "result: '6'",
        "changed:\n    x\n    f\n",
        "    def f(): return sum(x)\n",
    ] {
        assert!(output.contains(part), "{part:?} is not in {output}");
    }
    notebook.close().await;
}

async fn a_cell_is_run_again(backend: BackendKind) {
    let folder = folder();
    let mut notebook = notebook(&folder, backend);
    notebook.run("x = 1").await.unwrap();
    notebook.run("x += 1\nx").await.unwrap();
    let before = std::fs::read(file(&notebook, "cell_2_input.pkl")).unwrap();
    let cell = notebook.rerun("cell_2").await.unwrap();
    assert_eq!(
        (cell.runs, cell.execution.as_ref().unwrap().result.as_deref()),
        (2, Some("3"))
    );
    assert_ne!(std::fs::read(file(&notebook, "cell_2_input.pkl")).unwrap(), before);
    let cell = notebook.run_as("cell_2", "x * 10").await.unwrap();
    assert_eq!((cell.runs, cell.code.as_str()), (3, "x * 10"));
    assert_eq!(cell.execution.as_ref().unwrap().result.as_deref(), Some("30"));
    assert_eq!((notebook.cells().len(), files(&notebook).len()), (2, 4));
    for name in ["nothing", "../x", ""] {
        let error = notebook.rerun(name).await.unwrap_err();
        assert_eq!(error.code(), "invalid_option", "{name}");
    }
    for name in ["../x", "", "a/b", "ü", &"x".repeat(65)] {
        let error = notebook.run_as(name, "1").await.unwrap_err();
        assert_eq!(error.code(), "invalid_option", "{name}");
    }
    assert_eq!(notebook.cells().len(), 2);
    notebook.close().await;
}

async fn a_cell_that_fails_has_its_files_too(backend: BackendKind) {
    let folder = folder();
    let mut notebook = notebook(&folder, backend);
    for (code, error) in [("x = 1\n1 / 0", "ZeroDivisionError"), ("y = (", "SyntaxError")] {
        let cell = notebook.run(code).await.unwrap().clone();
        let execution = cell.execution.unwrap();
        assert_eq!(
            (execution.outcome, execution.error_type.as_deref()),
            (Outcome::Error, Some(error))
        );
        let output = show(file(&notebook, &format!("{}_output.pkl", cell.id)), backend).await;
        assert!(output.contains(&format!("error_type: '{error}'")), "{output}");
    }
    let cell = notebook.run("x").await.unwrap();
    assert_eq!(cell.execution.as_ref().unwrap().result.as_deref(), Some("1"));
    notebook.close().await;
}

async fn a_guest_that_dies_costs_the_variables_only(backend: BackendKind) {
    let folder = folder();
    let mut notebook = notebook(&folder, backend);
    notebook.run("x = 1").await.unwrap();
    let cell = notebook.run("import os\nos._exit(3)").await.unwrap();
    let execution = cell.execution.clone().unwrap();
    assert_eq!(
        (execution.outcome, execution.state.status),
        (Outcome::Crashed, StateStatus::Lost)
    );
    assert_eq!(files(&notebook).len(), 4);
    // The guest crashed in between, so the changes of the cell are not known.
    let output = show(file(&notebook, "cell_2_output.pkl"), backend).await;
    assert!(
        output.contains("changed: None") && output.contains("outcome: 'crashed'"),
        "{output}"
    );
    let cell = notebook.run("'x' in globals()").await.unwrap();
    assert_eq!(cell.execution.as_ref().unwrap().result.as_deref(), Some("False"));
    notebook.close().await;
}

async fn what_cannot_be_written_is_named(backend: BackendKind) {
    let folder = folder();
    let mut notebook = notebook(&folder, backend);
    let code = "class Bad:\n    def __reduce__(self): raise ValueError('not me')\nbad, good = Bad(), 1\nlarge = bytearray(65 << 20)";
    notebook.run(code).await.unwrap();
    let cell = notebook.run("good += 1").await.unwrap();
    assert_eq!(cell.missing, [] as [String; 0]);
    let input = show(file(&notebook, "cell_2_input.pkl"), backend).await;
    for part in ["    good = 1  (int)\n", "not me", "    large = \"too large:"] {
        assert!(input.contains(part), "{part:?} is not in {input}");
    }
    let output = show(file(&notebook, "cell_2_output.pkl"), backend).await;
    assert!(output.contains("changed:\n    good\n"), "{output}");
    notebook.close().await;
}

async fn cells_can_be_removed(backend: BackendKind) {
    let folder = folder();
    let mut notebook = notebook(&folder, backend);
    notebook.run("x = 1").await.unwrap();
    notebook.run("open('kept.txt', 'w').write('kept')").await.unwrap();
    notebook.delete_cell("cell_1").await.unwrap();
    assert_eq!(files(&notebook), ["cell_2_input.pkl", "cell_2_output.pkl"]);
    assert_eq!(
        notebook.delete_cell("cell_1").await.unwrap_err().code(),
        "invalid_option"
    );
    let sandbox = notebook.sandbox().await.unwrap();
    assert_eq!(sandbox.get_variable("x").await.unwrap(), Some(Value::Int(1)));
    notebook.clear().await.unwrap();
    assert!(notebook.cells().is_empty());
    assert!(!notebook.workspace().path().join(CELLS_FOLDER).exists());
    let cell = notebook.run("'x' in globals(), open('kept.txt').read()").await.unwrap();
    assert_eq!(cell.id, "cell_1");
    assert_eq!(
        cell.execution.as_ref().unwrap().result.as_deref(),
        Some("(False, 'kept')")
    );
    notebook.close().await;
}

async fn the_next_notebook_goes_on_counting(backend: BackendKind) {
    let folder = folder();
    let mut first = notebook(&folder, backend);
    first.run("x = 1").await.unwrap();
    first.close().await;
    let mut second = notebook(&folder, backend);
    assert!(second.cells().is_empty());
    assert_eq!(second.run("y = 1").await.unwrap().id, "cell_2");
    assert_eq!(files(&second).len(), 4);
    second.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn guests_do_not_see_the_files_of_cells() {
    let folder = folder();
    let mut notebook = notebook(&folder, BackendKind::Bubblewrap);
    notebook.run("x = 1").await.unwrap();
    let code = "import os
def refused(path):
    try: open(path, 'w').close()
    except OSError: return True
os.listdir('.repl'), refused('.repl/cell_1_input.pkl'), refused('.repl/new'), 'cell_1_input.pkl' in str(list(os.walk('/')))";
    let cell = notebook.run(code).await.unwrap();
    let result = cell.execution.as_ref().unwrap().result.clone();
    assert_eq!(result.as_deref(), Some("([], True, True, False)"));
    assert_eq!(files(&notebook).len(), 4);
    notebook.close().await;
}

/// Makes a cell's file at `path`. Opening the file runs code that leaves a trace.
fn make_evil(path: &Path, trace: &Path) {
    let make = format!(
        "import pickle, sys
class Evil:
    def __reduce__(self):
        return exec, ({:?},)
pickle.dump({{'outcome': Evil(), 'code': '\\x1b]0;title\\x07'}}, open(sys.argv[1], 'wb'))",
        format!("import sys, os; os.write(1, b'\\x1b[2Jhello\\n'); open({trace:?}, 'w').close()")
    );
    let made = Command::new("python3").args(["-c", &make]).arg(path).status().unwrap();
    assert!(made.success());
}

/// Neither the host nor a guest opens a cell's file, whatever a user does with the cells. On plain processes an opened file
/// would leave its trace on the host.
async fn files_of_cells_are_opened_by_nobody_who_is_not_asked_to(backend: BackendKind) {
    let folder = folder();
    let mut first = notebook(&folder, backend);
    first.run("x = 1").await.unwrap();
    let trace = folder.path().join("trace");
    let (input, output) = (file(&first, "cell_1_input.pkl"), file(&first, "cell_1_output.pkl"));
    first.close().await;
    for path in [&input, &output] {
        make_evil(path, &trace);
    }
    let evil = std::fs::read(&output).unwrap();
    let mut second = notebook(&folder, backend);
    let cell = second.run("y = 2").await.unwrap();
    assert_eq!((cell.id.as_str(), cell.missing.len()), ("cell_2", 0));
    let cell = second.rerun("cell_2").await.unwrap();
    assert_eq!(cell.execution.as_ref().unwrap().outcome, Outcome::Ok);
    second.delete_cell("cell_2").await.unwrap();
    assert_eq!(std::fs::read(&output).unwrap(), evil);
    second.run_as("cell_1", "z = 3").await.unwrap();
    assert_ne!(
        std::fs::read(&output).unwrap(),
        evil,
        "it is replaced by what came of the cell"
    );
    second.clear().await.unwrap();
    second.close().await;
    assert!(!trace.exists());
    // The file does something when opened: a plain process shows so below.
    make_evil(&trace.with_extension("pkl"), &trace);
    let open = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))";
    let opened = Command::new("python3")
        .args(["-c", open])
        .arg(trace.with_extension("pkl"))
        .output();
    assert!(opened.unwrap().status.success() && trace.exists());
}

#[test]
fn a_file_is_opened_where_it_can_do_no_harm() {
    let folder = folder();
    let (path, trace) = (folder.path().join("evil.pkl"), folder.path().join("trace"));
    make_evil(&path, &trace);
    let (succeeded, _, err) = shown(&path, "bubblewrap");
    assert!(
        !succeeded && err.contains("the file cannot be shown: FileNotFoundError"),
        "{err}"
    );
    assert!(!trace.exists());
    // A plain process isolates nothing, so the same file leaves its trace. The file still does not control the terminal.
    let (succeeded, out, err) = shown(&path, "subprocess");
    assert!(succeeded && trace.exists(), "{err}");
    assert!(out.contains("\u{fffd}[2Jhello") && !out.contains('\u{1b}'), "{out:?}");
}

#[test]
fn what_is_no_file_of_a_cell_says_so() {
    let folder = folder();
    let path = folder.path().join("text.pkl");
    std::fs::write(&path, "no pickle").unwrap();
    let (succeeded, _, err) = shown(&path, "subprocess");
    assert!(
        !succeeded && err.contains("sandglass-host cell: the file cannot be shown: "),
        "{err}"
    );
    let (succeeded, _, err) = shown(&folder.path().join("nothing"), "subprocess");
    assert!(
        !succeeded && err.contains("nothing cannot be read: No such file"),
        "{err}"
    );
}
