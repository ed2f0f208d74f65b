//! Copies of sessions.

use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::support::{ANN, BOB, TestServer, answer, refusal};

fn ids(told: &Value) -> Vec<String> {
    let sessions = told["sessions"].as_array().unwrap();
    sessions
        .iter()
        .map(|session| session["id"].as_str().unwrap().to_owned())
        .collect()
}

/// The names of what is lost.
fn lost(told: &Value) -> Vec<&str> {
    let all = told.as_array().unwrap();
    all.iter().map(|lost| lost["name"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_have_the_state_and_go_their_own_ways() {
    let server = TestServer::start(&[]).await;
    let id = server.session(json!({ "context": "a text" })).await;
    server
        .execute(
            &id,
            "import os, math as _math\nclass Point:\n    x = 1\n    def more(self): return Point()\npoint = Point()\n\
             items = same = [len(context)]\ndef add(n): items.append(n)\n_private = 2\n\
             def counter(start):\n    def count():\n        nonlocal start\n        start += _private\n        return _math.floor(start)\n    return count\n\
             count = counter(10)\n\
             open('kept.txt', 'w').write('a file')\nopen('own.py', 'w').write('size = 7')\nimport own\n\
             os.makedirs('empty/inner')\nsteps = (n for n in range(9))",
        )
        .await;
    let (status, told) = answer(server.post(&format!("/v1/sessions/{id}/fork"), &json!({ "count": 3 }))).await;
    assert_eq!(status, StatusCode::CREATED, "{told}");
    assert_eq!(told["execution"], 1);
    assert_eq!(lost(&told["lost"]), ["steps"], "nothing else is missing");
    let copies = ids(&told);
    assert_eq!(copies.len(), 3);
    for (number, copy) in copies.iter().enumerate() {
        let code = format!(
            "add({number})\nitems, same is items, point.more().x, open('kept.txt').read(), os.path.isdir('empty/inner'), count(), own.size"
        );
        let run = server.execute(copy, &code).await;
        assert_eq!(
            run["result"],
            format!("([6, {number}], True, 1, 'a file', True, 12, 7)"),
            "{run}"
        );
        assert_eq!((&run["id"], &run["state"]["status"]), (&json!(2), &json!("kept")));
        assert_eq!(lost(&run["state"]["lost"]), ["steps"]);
        let run = server.execute(copy, "context").await;
        assert_eq!(
            (&run["result"], &run["state"]["lost"]),
            (&json!("'a text'"), &Value::Null)
        );
    }
    let run = server
        .execute(&id, "items, next(steps), sorted(set(os.listdir()) - {'__pycache__'})")
        .await;
    assert_eq!(
        run["result"], "([6], 0, ['empty', 'kept.txt', 'own.py'])",
        "the original is as it was: {run}"
    );
    server.stop().await;
}

/// Guests that start cold, and guests that a zygote forks.
#[tokio::test(flavor = "multi_thread")]
async fn exact_copies_lack_nothing() {
    for pool in [&[][..], &["--spares", "1", "--preload", "wave"]] {
        let server = TestServer::start(&[&["--backend", "bubblewrap"], pool].concat()).await;
        let id = server.session(json!({ "context": "a text", "checkpoints": 3 })).await;
        let code = "import os, random\nnumbers = (n for n in range(9))\nfile = open('f', 'w+')\nfile.write('abc')\nrandom.seed(7), next(numbers)";
        assert_eq!(server.execute(&id, code).await["outcome"], "ok");
        let fork = format!("/v1/sessions/{id}/fork");
        let (status, told) = answer(server.post(&fork, &json!({ "count": 2, "exact": true }))).await;
        assert_eq!((status, &told["execution"]), (StatusCode::CREATED, &json!(1)), "{told}");
        assert_eq!(told["lost"], json!([]));
        let copies = ids(&told);
        for id in copies.iter().chain([&id]) {
            let code = "(file.write('d'), file.seek(0), file.read(), next(numbers), round(random.random(), 4), context,\n\
                        os.getuid(), len([name for name in os.listdir('/proc') if name.isdecimal()]) < 9)";
            let run = server.execute(id, code).await;
            assert_eq!(
                run["result"], "(1, 0, 'abcd', 1, 0.3238, 'a text', 1000, True)",
                "{run}"
            );
            assert_eq!(run["state"]["status"], "kept", "{run}");
            let (status, said) = answer(server.post(&format!("/v1/sessions/{id}/undo"), &json!({}))).await;
            assert_eq!((status, &said["execution"]), (StatusCode::OK, &json!(1)), "{said}");
            assert_eq!(server.execute(id, "next(numbers)").await["result"], "1");
        }
        let (_, told) =
            answer(server.post(&format!("/v1/sessions/{}/fork", copies[0]), &json!({ "exact": true }))).await;
        assert_eq!(
            server.execute(&ids(&told)[0], "next(numbers)").await["result"],
            "2",
            "a copy of a copy: {told}"
        );
        let plain = server.session(json!({})).await;
        server.execute(&plain, "x = 1").await;
        let (status, code) =
            refusal(server.post(&format!("/v1/sessions/{plain}/fork"), &json!({ "exact": true }))).await;
        assert_eq!((status, code.as_str()), (422, "not_serializable"));
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_loses_its_guest_still_has_the_context() {
    let server = TestServer::start(&[]).await;
    let id = server.session(json!({ "context": [1, 2] })).await;
    server.execute(&id, "x = 1").await;
    let (_, told) = answer(server.post(&format!("/v1/sessions/{id}/fork"), &json!({}))).await;
    let copy = &ids(&told)[0];
    let run = server.execute(copy, "import os; os._exit(1)").await;
    assert_eq!(
        (&run["outcome"], &run["state"]["status"]),
        (&json!("crashed"), &json!("lost"))
    );
    assert_eq!(server.execute(copy, "context").await["result"], "[1, 2]");
    assert_eq!(server.execute(&id, "x").await["result"], "1");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_that_cannot_be_made_leave_nothing() {
    let mut server = TestServer::with_keys(&["--max-sessions-per-key", "3"]).await;
    server.key = Some(ANN);
    let id = server.session(json!({})).await;
    let fork = format!("/v1/sessions/{id}/fork");
    for wrong in [
        json!({ "count": 0 }),
        json!({ "count": 101 }),
        json!({ "count": "2" }),
        json!({ "number": 2 }),
    ] {
        assert_eq!(refusal(server.post(&fork, &wrong)).await.0, 400, "{wrong}");
    }
    let (status, code) = refusal(server.post(&fork, &json!({ "count": 3 }))).await;
    assert_eq!((status, code.as_str()), (429, "too_many_sessions"));
    server
        .execute(&id, "for n in range(2001): open(f'{n}.txt', 'w').close()")
        .await;
    let (status, code) = refusal(server.post(&fork, &json!({ "count": 2 }))).await;
    assert_eq!((status, code.as_str()), (422, "not_serializable"));
    server
        .execute(&id, "import os\nfor n in range(2001): os.remove(f'{n}.txt')")
        .await;
    let (_, all) = answer(server.get("/v1/sessions")).await;
    assert_eq!(all["sessions"].as_array().unwrap().len(), 1, "{all}");
    let (status, _) = answer(server.post(&fork, &json!({ "count": 2 }))).await;
    assert_eq!(status, StatusCode::CREATED);
    server.key = Some(BOB);
    let (status, code) = refusal(server.post(&fork, &json!({}))).await;
    assert_eq!((status, code.as_str()), (404, "session_not_found"));
    server.stop().await;
}

/// A copy asks no class what it is made of, and tells what it cannot have.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_copy_cannot_have_is_told_by_the_answer_and_the_copy() {
    let server = TestServer::start(&[]).await;
    let id = server.session(json!({})).await;
    let hostile = "class No:\n    def __reduce__(self): raise RuntimeError('no')\n    __getstate__ = __reduce__\n\
                   no = No()\nno.x = 5\nimport threading, sys, types\nheld = [no, threading.Lock()]\n\
                   made = types.ModuleType('made')\nsys.modules['made'] = made\nmade.n = 1\nx = 3";
    server.execute(&id, hostile).await;
    let (status, told) = answer(server.post(&format!("/v1/sessions/{id}/fork"), &json!({ "count": 2 }))).await;
    assert_eq!(status, StatusCode::CREATED, "{told}");
    let mut names = lost(&told["lost"]);
    names.sort_unstable();
    assert_eq!(names, ["held", "made"], "{told}");
    for copy in ids(&told) {
        let run = server.execute(&copy, "no.x, x, 'made' in globals()").await;
        assert_eq!(run["result"], "(5, 3, False)", "{run}");
        let mut names = lost(&run["state"]["lost"]);
        names.sort_unstable();
        assert_eq!(names, ["held", "made"], "{run}");
    }
    server.stop().await;
}
