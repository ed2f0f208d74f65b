#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use proptest::prelude::*;

use super::marker::{Environment, Marker};
use super::requirement::{Requirement, Source};
use super::wheel::WheelName;
use super::*;

fn target() -> Target {
    Target {
        python: "3.14.2".to_owned(),
        abi: "2026_0".to_owned(),
    }
}

const LOCK: &str = r#"{ "info": {}, "packages": {
  "pydantic": { "name": "pydantic", "version": "2.14.3", "file_name": "pydantic-2.14.3-py3-none-any.whl", "sha256": "HASH",
    "imports": ["pydantic"], "depends": ["pydantic_core", "typing-extensions"], "install_dir": "site", "package_type": "package" },
  "pydantic-core": { "name": "pydantic_core", "version": "2.50.4", "imports": ["pydantic_core"], "depends": ["typing-extensions"],
    "file_name": "pydantic_core-2.50.4-cp314-cp314-pyemscripten_2026_0_wasm32.whl", "sha256": "HASH" },
  "typing-extensions": { "name": "typing-extensions", "version": "4.16.0", "imports": ["typing_extensions"], "depends": [],
    "file_name": "https://elsewhere.example/typing_extensions-4.16.0-py3-none-any.whl", "sha256": "HASH" },
  "email-validator": { "name": "email-validator", "version": "2.4.0", "imports": ["email_validator"], "depends": ["gone"],
    "file_name": "email_validator-2.4.0-py3-none-any.whl", "sha256": "HASH" },
  "libopenblas": { "name": "libopenblas", "version": "0.3", "file_name": "libopenblas-0.3.zip", "sha256": "HASH",
    "imports": [], "depends": [], "install_dir": "dynlib", "package_type": "shared_library" },
  "linux": { "name": "linux", "version": "1", "file_name": "linux-1-cp314-cp314-manylinux_2_28_x86_64.whl", "sha256": "HASH" },
  "one": { "name": "one", "version": "1", "file_name": "one-1-py3-none-any.whl", "sha256": "HASH", "depends": ["two"] },
  "two": { "name": "two", "version": "1", "file_name": "two-1-py3-none-any.whl", "sha256": "HASH", "depends": ["one"] }
} }"#;

fn lock() -> Lock {
    let hash = "Ab".repeat(32);
    Lock::parse(
        "https://here.example/wheels/lock.json?v=1",
        None,
        &LOCK.replace("HASH", &hash),
    )
    .unwrap()
}

/// Resolves requirements that need no METADATA.
fn resolve(texts: &[&str], there: &[(String, String)]) -> Result<Vec<Wheel>, Error> {
    let (lock, target) = (lock(), target());
    let wanted = texts
        .iter()
        .map(|text| Requirement::parse(text))
        .collect::<Result<_, _>>()?;
    match Resolver::new(&lock, &target, there, wanted).step()? {
        Step::Done(wheels) => Ok(wheels),
        step => panic!("wants {step:?}"),
    }
}

const PROJECT: &str = r#"{ "info": {}, "releases": {
  "0.9": [{ "filename": "stem-0.9-py3-none-any.whl", "url": "https://files.example/stem-0.9-py3-none-any.whl", "digests": { "sha256": "HASH" } }],
  "1.10": [
    { "filename": "stem-1.10.tar.gz", "url": "https://files.example/stem-1.10.tar.gz", "digests": { "sha256": "HASH" } },
    { "filename": "stem-1.10-cp314-cp314-manylinux_2_28_x86_64.whl", "url": "https://files.example/x.whl", "digests": { "sha256": "HASH" } },
    { "filename": "stem-1.10-py2.py3-none-any.whl", "url": "https://files.example/stem-1.10-py2.py3-none-any.whl",
      "digests": { "sha256": "HASH" }, "requires_python": ">=3.9" }],
  "1.9": [{ "filename": "stem-1.9-py3-none-any.whl", "url": "https://files.example/stem-1.9-py3-none-any.whl", "digests": { "sha256": "HASH" } }],
  "2.0": [{ "filename": "stem-2.0-py3-none-any.whl", "url": "https://files.example/a", "digests": { "sha256": "HASH" }, "yanked": true }],
  "2.1": [{ "filename": "stem-2.1-py3-none-any.whl", "url": "https://files.example/a", "digests": { "sha256": "HASH" }, "requires_python": "<3" }],
  "2.2": [{ "filename": "stem-2.2-py3-none-any.whl", "url": "https://files.example/a" }],
  "2.3": [{ "filename": "stem-2.3-py3-none-any.whl", "url": "file:///etc/passwd", "digests": { "sha256": "HASH" } }],
  "2.4": [{ "filename": "other-2.4-py3-none-any.whl", "url": "https://files.example/a", "digests": { "sha256": "HASH" } }],
  "3.0rc1": [{ "filename": "stem-3.0rc1-py3-none-any.whl", "url": "https://files.example/rc.whl", "digests": { "sha256": "HASH" } }],
  "no version": []
} }"#;

fn project() -> String {
    PROJECT.replace("HASH", &"cd".repeat(32))
}

#[test]
fn the_index_gives_the_newest_wheel_that_fits() {
    let chosen = |text: &str| {
        let wheel = index::choose(&project(), &Requirement::parse(text).unwrap(), &target());
        wheel.map(|wheel| wheel.version).map_err(|error| error.code())
    };
    assert_eq!(chosen("pypi:stem").unwrap(), "1.10");
    assert_eq!(chosen("pypi: Stem<1.10").unwrap(), "1.9");
    assert_eq!(chosen("pypi:stem>=3.0rc1").unwrap(), "3.0rc1");
    assert_eq!(chosen("pypi:stem==2.0"), Err("package_not_found"));
    assert_eq!(chosen("pypi:stem>=2,<3.0a0"), Err("package_not_found"));
    for text in [
        "pypi:",
        "pypi:pypi:stem",
        "pypi:https://here.example/a-1-py3-none-any.whl",
        "pypi:a @ https://x/a-1-py3-none-any.whl",
    ] {
        assert_eq!(
            Requirement::parse(text).map_err(|error| error.code()),
            Err("invalid_option"),
            "{text}"
        );
    }
}

#[test]
fn what_a_package_of_the_index_requires_is_looked_for_in_the_lock_file_first() {
    let (lock, target) = (lock(), target());
    let wanted = vec![Requirement::parse("pypi:stem").unwrap()];
    let mut resolver = Resolver::new(&lock, &target, &[], wanted);
    assert_eq!(resolver.step().unwrap(), Step::Look("stem".to_owned()));
    resolver.take_project(&project()).unwrap();
    let Step::Read(wheel) = resolver.step().unwrap() else {
        panic!("no METADATA")
    };
    assert_eq!(wheel.sha256, Some("cd".repeat(32)));
    let requires = "Requires-Dist: typing-extensions>=4\nRequires-Dist: pydantic<1\nRequires-Dist: leaf\n";
    resolver
        .take_metadata(&format!("Name: stem\nVersion: 1.10\n{requires}"))
        .unwrap();
    // The lock file's version of pydantic does not fit, and leaf is not in it.
    assert_eq!(resolver.step().unwrap(), Step::Look("pydantic".to_owned()));
    let refused = resolver.take_project(&project()).unwrap_err();
    assert_eq!(refused.code(), "package_not_found");
    assert_eq!(resolver.step().unwrap(), Step::Look("leaf".to_owned()));
}

fn names(wheels: &[Wheel]) -> Vec<&str> {
    wheels.iter().map(|wheel| wheel.name.as_str()).collect()
}

fn refusal(texts: &[&str]) -> String {
    let error = resolve(texts, &[]).unwrap_err();
    assert_eq!(error.code(), "package_not_found", "{error}");
    error.to_string()
}

#[test]
fn names_have_one_form() {
    assert_eq!(normalized("Foo.Bar__baz-"), "foo-bar-baz");
    assert!(is_name("a") && is_name("a.b-c_1") && !is_name("-a") && !is_name("") && !is_name("a b") && !is_name("é"));
}

#[test]
fn requirements_are_read_as_their_writers_mean_them() {
    let read = |text: &str| Requirement::parse(text).unwrap();
    for (text, name, wanted) in [
        ("pydantic", "pydantic", "any version"),
        (" Pydantic_Core >=2, <3 ", "pydantic-core", ">=2, <3"),
        ("a[x, Y_z] ( ~= 1.4 )", "a", "~=1.4"),
        ("a==1.*; python_version > '3'", "a", "==1.*"),
        ("a @ https://x.example/a-1-py3-none-any.whl#sha256=", "", ""),
        (
            "https://x.example/dir/a_b-1.0-py3-none-any.whl?x=1",
            "a-b",
            "https://x.example/dir/a_b-1.0-py3-none-any.whl?x=1",
        ),
        ("./wheels/a-1-py3-none-any.whl", "a", "./wheels/a-1-py3-none-any.whl"),
        (
            "a[b] @ /a-1-py3-none-any.whl ; os_name == 'posix'",
            "a",
            "/a-1-py3-none-any.whl",
        ),
    ] {
        if name.is_empty() {
            assert!(Requirement::parse(text).is_err(), "{text}");
            continue;
        }
        assert_eq!(
            (read(text).name.as_str(), read(text).wanted().as_str()),
            (name, wanted),
            "{text}"
        );
    }
    assert_eq!(read("a[x, Y_z]").extras, ["x", "y-z"]);
    let hash = "0F".repeat(32);
    match read(&format!(
        "https://x.example/a-1+b%2bc-py3-none-any.whl#egg=1&sha256={hash}"
    ))
    .source
    {
        Source::Wheel { sha256, .. } => assert_eq!(sha256, Some(hash.to_lowercase())),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_no_requirement_is_refused() {
    for text in [
        "",
        "  ",
        "a b",
        "a[",
        "a[!]",
        "a>=",
        "a>=x",
        "a; nonsense == 'x'",
        "a; os_name",
        "a; (os_name == 'x'",
        "-a",
        "é",
        "https://x.example/a.tar.gz",
        "https://x.example/a-1.whl",
        "b @ https://x.example/a-1-py3-none-any.whl",
        "https://x.example/a b-1-py3-none-any.whl",
        "file",
        "javascript:alert(1)",
    ]
    .iter()
    .filter(|text| **text != "file")
    {
        assert_eq!(
            Requirement::parse(text).map_err(|error| error.code()),
            Err("invalid_option"),
            "{text}"
        );
    }
    let deep = format!("a; {}os_name == 'x'", "(".repeat(1_000));
    assert!(
        Requirement::parse(&deep)
            .unwrap_err()
            .to_string()
            .contains("too deeply")
    );
}

#[test]
fn markers_know_the_guest() {
    let (target, extras) = (target(), ["pack".to_owned()]);
    let environment = Environment {
        target: &target,
        extras: &extras,
    };
    for (marker, holds) in [
        ("python_version >= '3.9'", true),
        ("python_version < '3.9'", false),
        ("'3.9' < python_full_version", true),
        ("sys_platform == 'emscripten'", true),
        ("sys_platform == \"win32\" or os_name == 'posix'", true),
        ("platform_machine == 'wasm32' and not_a_marker == 'x'", false),
        ("os_name == 'posix' and (extra == 'Pack' or extra == 'x')", true),
        ("extra == 'other'", false),
        ("extra != 'other'", true),
        ("'script' in sys_platform", true),
        ("sys_platform not in 'linux darwin'", true),
        ("platform_python_implementation != 'CPython'", false),
        (
            "implementation_name == 'pypy' or os_name == 'nt' and extra == 'pack'",
            false,
        ),
    ] {
        let parsed = Marker::parse(marker);
        assert_eq!(
            parsed.map(|marker| marker.holds(&environment)).unwrap_or(false),
            holds,
            "{marker}"
        );
    }
}

#[test]
fn wheels_of_another_kind_are_refused_by_their_names() {
    let check = |name: &str| WheelName::parse(name).unwrap().check(&target());
    for fits in [
        "a-1-py3-none-any.whl",
        "a-1-py2.py3-none-any.whl",
        "a-1-1-py38-none-any.whl",
        "a-1-cp314-cp314-pyodide_2026_0_wasm32.whl",
        "a-1-cp311-abi3-pyemscripten_2026_0_wasm32.whl",
        "a-1-cp314-none-any.whl",
    ] {
        assert_eq!(check(fits), Ok(()), "{fits}");
    }
    for other in [
        "a-1-py2-none-any.whl",
        "a-1-cp313-cp313-pyemscripten_2025_0_wasm32.whl",
        "a-1-cp313-cp313-pyemscripten_2026_0_wasm32.whl",
        "a-1-cp314-cp314-pyemscripten_2025_0_wasm32.whl",
        "a-1-cp314-cp314-win_amd64.whl",
        "a-1-cp315-abi3-pyemscripten_2026_0_wasm32.whl",
        "a-1-py315-none-any.whl",
    ] {
        assert!(check(other).unwrap_err().contains(other), "{other}");
    }
}

#[test]
fn a_package_comes_with_what_it_depends_on_each_once() {
    let wheels = resolve(&["pydantic>=2", "Pydantic.Core"], &[]).unwrap();
    assert_eq!(names(&wheels), ["pydantic", "pydantic_core", "typing-extensions"]);
    assert_eq!(
        wheels[0].url,
        "https://here.example/wheels/pydantic-2.14.3-py3-none-any.whl"
    );
    assert_eq!(wheels[0].sha256, Some("ab".repeat(32)));
    assert_eq!(
        wheels[2].url,
        "https://elsewhere.example/typing_extensions-4.16.0-py3-none-any.whl"
    );
    assert_eq!(names(&resolve(&["one"], &[]).unwrap()), ["one", "two"]);
    assert!(resolve(&["libopenblas"], &[]).unwrap()[0].is_library);
}

#[test]
fn what_is_there_is_not_fetched_again() {
    let there = [("typing-extensions".to_owned(), "4.16.0".to_owned())];
    assert_eq!(names(&resolve(&["pydantic-core"], &there).unwrap()), ["pydantic_core"]);
    assert_eq!(resolve(&["typing-extensions>=4"], &there), Ok(Vec::new()));
    let error = resolve(&["typing-extensions>=5"], &there).unwrap_err().to_string();
    assert!(
        error.contains("4.16.0 is loaded already") && error.contains(">=5"),
        "{error}"
    );
}

#[test]
fn a_refusal_names_the_package_the_versions_and_who_wants_it() {
    let text = refusal(&["pydantic>=3,<4"]);
    assert!(
        text.contains("pydantic: >=3, <4 is wanted") && text.contains("has version 2.14.3"),
        "{text}"
    );
    let text = refusal(&["email-validator"]);
    assert!(
        text.contains("gone, which email-validator requires") && text.contains("lock.json"),
        "{text}"
    );
    assert!(refusal(&["linux"]).contains("manylinux_2_28_x86_64"));
    assert!(refusal(&["pydantic", "pydantic @ https://x.example/pydantic-1-py3-none-any.whl"]).contains("2.14.3"));
    assert_eq!(resolve(&["nowhere; os_name == 'nt'"], &[]), Ok(Vec::new()));
}

#[test]
fn a_wheel_by_its_address_brings_what_its_metadata_says() {
    let (lock, target) = (lock(), target());
    let read = |text: &str| Requirement::parse(text).unwrap();
    let wanted = vec![
        read("app[mail] @ https://x.example/app-1-py3-none-any.whl"),
        read("typing-extensions"),
    ];
    let mut resolver = Resolver::new(&lock, &target, &[], wanted);
    let Step::Read(wheel) = resolver.step().unwrap() else {
        panic!("reads nothing")
    };
    assert_eq!((wheel.name.as_str(), wheel.sha256), ("app", None));
    let metadata = "Metadata-Version: 2.1\nName: App\nVersion: 1\nRequires-Dist: pydantic-core>=2\n\
        Requires-Dist: nowhere; extra == 'other'\nRequires-Dist: one; extra == 'mail'\nRequires-Dist: linux; os_name == 'nt'\n\n\
        Requires-Dist: ignored\n";
    resolver.take_metadata(metadata).unwrap();
    let Step::Done(wheels) = resolver.step().unwrap() else {
        panic!("reads on")
    };
    assert_eq!(
        names(&wheels),
        ["app", "typing-extensions", "pydantic_core", "one", "two"]
    );

    let mut resolver = Resolver::new(
        &lock,
        &target,
        &[],
        vec![read("https://x.example/app-1-py3-none-any.whl")],
    );
    assert!(matches!(resolver.step(), Ok(Step::Read(_))));
    assert_eq!(
        resolver
            .take_metadata("Name: other\nVersion: 1\n")
            .map_err(|e| e.code()),
        Err("integrity")
    );
}

#[test]
fn extras_of_a_package_of_the_lock_file_are_in_its_wheel() {
    let (lock, target) = (lock(), target());
    let wanted = vec![Requirement::parse("pydantic-core[more]").unwrap()];
    let mut resolver = Resolver::new(&lock, &target, &[], wanted);
    assert!(matches!(resolver.step(), Ok(Step::Read(_))));
    // METADATA counts for the extra only; the lock file has the package's other requirements.
    let metadata = "Name: pydantic-core\nVersion: 2\nRequires-Dist: nowhere\nRequires-Dist: one; extra == 'more'\n";
    resolver.take_metadata(metadata).unwrap();
    let Step::Done(wheels) = resolver.step().unwrap() else {
        panic!("reads on")
    };
    assert_eq!(names(&wheels), ["pydantic_core", "typing-extensions", "one", "two"]);
}

#[test]
fn a_lock_file_needs_hashes() {
    let text = LOCK.replace("HASH", "");
    assert_eq!(
        Lock::parse("lock.json", None, &text).map_err(|e| e.code()).err(),
        Some("asset_failed")
    );
    assert!(Lock::parse("lock.json", None, "<!doctype html>").is_err());
    let lock = Lock::parse(
        "lock.json",
        Some("https://x.example/w"),
        &LOCK.replace("HASH", &"0".repeat(64)),
    )
    .unwrap();
    assert_eq!(
        lock.locate(lock.find("one").unwrap()),
        "https://x.example/w/one-1-py3-none-any.whl"
    );
    assert_eq!(
        lock.packages_with(&["pydantic_core".to_owned(), "os".to_owned()]),
        ["pydantic-core"]
    );
}

#[test]
fn imports_are_found_where_code_has_them() {
    let found = |code: &str| imported_modules(code).join(" ");
    for (code, modules) in [
        ("import a.b, c as d; import e", "a c e"),
        ("from a.b import (c,\n  d)\nimport f", "a f"),
        ("def f():\n    if x: import g\n    from h import *", "g h"),
        ("try:\n  import numpy as np\nexcept ImportError: pass", "numpy"),
        ("import a, \\\n  b", "a b"),
        ("from . import x\nfrom .y import z", ""),
        (
            "print('import a')\n'''\nimport b\n'''\n# import c\nx = \"\\\"; import d\"",
            "",
        ),
        ("important = 1\nfromage = 2\nimport_ = 3", ""),
        ("x = (\n import_a,\n)\nimport ä", "ä"),
        ("import 1a, *", ""),
        ("import a\nimport a", "a"),
        (
            "from zoneinfo import ZoneInfo\nimport pandas as pd, tzdata",
            "zoneinfo tzdata pandas",
        ),
    ] {
        assert_eq!(found(code), modules, "{code}");
    }
}

proptest! {
    #[test]
    fn nothing_that_is_written_makes_it_panic(text in "\\PC{0,60}", parts in prop::collection::vec("[a-c(\\[\\]);@#.=<>~'\" \n\\\\]|import |from |sha256=|python_version|extra|\\.whl|://|and |not in ", 0..30)) {
        let mixed = parts.concat();
        for text in [&text, &mixed] {
            let _ = Requirement::parse(text);
            let _ = Marker::parse(text);
            let _ = WheelName::of_url(text);
            let _ = imported_modules(text);
            let _ = Lock::parse(text, Some(text), text);
            let _ = super::wheel::named(text);
        }
    }

    #[test]
    fn what_comes_is_closed_under_dependencies(picks in prop::collection::vec(0..5_usize, 1..5)) {
        let all = ["pydantic", "pydantic-core", "typing-extensions", "one", "two"];
        let texts: Vec<&str> = picks.iter().map(|pick| all[*pick]).collect();
        let lock = lock();
        let wheels = resolve(&texts, &[]).unwrap();
        let came: Vec<String> = wheels.iter().map(|wheel| normalized(&wheel.name)).collect();
        for (index, name) in came.iter().enumerate() {
            prop_assert!(!came[..index].contains(name));
            for depends in &lock.find(name).unwrap().depends {
                prop_assert!(came.contains(&normalized(depends)));
            }
        }
        prop_assert!(texts.iter().all(|text| came.iter().any(|name| name == text)));
    }
}
