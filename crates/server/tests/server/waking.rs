//! Sessions that wake: their variables, files and modules, and the losses that they report.

use serde_json::json;

use crate::suspending::{lost, quick, states, suspended};

#[tokio::test(flavor = "multi_thread")]
async fn variables_that_cannot_be_written_are_named() {
    let (_folder, path) = states();
    let server = quick(&path, &[]).await;
    let id = server.session(json!({})).await;
    let code = "import threading\nnumbers = (n for n in [1])\nopened = open('/dev/null')\nlock = threading.Lock()\nx = 5\n\
                class Bad:\n    def __reduce__(self): raise TypeError('never')\nbad = Bad()\nbad.x = 6";
    server.execute(&id, code).await;
    suspended(&server, &id).await;
    let run = server.execute(&id, "x, bad.x, 'numbers' in globals()").await;
    assert_eq!(
        (&run["result"], &run["state"]["status"]),
        (&json!("(5, 6, False)"), &json!("kept")),
        "{run}"
    );
    let mut names = lost(&run);
    names.sort_unstable();
    assert_eq!(names, ["lock", "numbers", "opened"]);
    // A loss is told once.
    suspended(&server, &id).await;
    assert_eq!(lost(&server.execute(&id, "x").await), [""; 0]);
    server.stop().await;
}

/// Opening the variables imports modules, so it has more time than a short execution.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_with_little_time_wakes_and_tells_which_module_is_gone() {
    let (_folder, path) = states();
    let server = quick(&path, &[]).await;
    let id = server.session(json!({ "timeout": 1_000 })).await;
    let code = "import os\nwith open('slow.py', 'w') as file:\n    file.write('import os, time\\nbegan = time.monotonic()\\n')\n\
                \x20   file.write('while os.path.exists(\"again\") and time.monotonic() < began + 2: pass\\nsize = 7')\n\
                del file\nimport slow\nopen('again', 'w').close()\nslow.size";
    assert_eq!(server.execute(&id, code).await["result"], "7");
    suspended(&server, &id).await;
    let run = server.execute(&id, "slow.size").await;
    assert_eq!((&run["result"], lost(&run).len()), (&json!("7"), 0), "{run}");
    // A module that is gone is told.
    suspended(&server, &id).await;
    server.execute(&id, "os.remove('slow.py')").await;
    suspended(&server, &id).await;
    let run = server.execute(&id, "'slow' in globals()").await;
    assert_eq!(run["result"], "False", "{run}");
    assert_eq!(lost(&run), ["slow"], "{run}");
    server.stop().await;
}
