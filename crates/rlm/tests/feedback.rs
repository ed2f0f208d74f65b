//! Tests of the texts that tell a model of an execution. The expected texts come from the named projects' own functions, for the same
//! output.
#![cfg(not(target_arch = "wasm32"))]

use proptest::prelude::*;
use sandglass_core::execution::{Outcome, StateReport, Truncated};
use sandglass_core::output::OutputBuffer;
use sandglass_core::{CodeExecution, Profile};
use sandglass_rlm::feedback::{Format, feedback, rlm_turn};

fn ran(code: &str, stdout: &str) -> CodeExecution {
    CodeExecution {
        id: 1,
        code: code.to_owned(),
        stdout: stdout.to_owned(),
        stderr: String::new(),
        error: None,
        error_type: None,
        traceback: None,
        duration: 1.0,
        guest_time: 1.0,
        outcome: Outcome::Ok,
        state: StateReport::kept(),
        result: None,
        displays: Vec::new(),
        files: Vec::new(),
        truncated: Truncated::default(),
        host_calls: 0,
        killer: None,
        usage: None,
    }
}

fn failed(code: &str, stdout: &str, stderr: &str) -> CodeExecution {
    CodeExecution {
        stderr: stderr.to_owned(),
        error: Some("ZeroDivisionError: division by zero".to_owned()),
        error_type: Some("ZeroDivisionError".to_owned()),
        traceback: Some("Traceback (most recent call last):\n  …\nZeroDivisionError: division by zero\n".to_owned()),
        outcome: Outcome::Error,
        ..ran(code, stdout)
    }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn told(format: impl Into<Format>, execution: &CodeExecution) -> String {
    feedback(format, execution, None, &[], None)
}

#[test]
fn rlm_s_texts() {
    let rlm = Profile::Rlm;
    assert_eq!(told(rlm, &ran("print(1)", "1\n")), "REPL output:\n\n1\n");
    assert_eq!(told(rlm, &ran("x", "")), "REPL output:\nNo output");
    assert_eq!(
        feedback(rlm, &failed("1/0", "a\n", "w\n"), None, &names(&["x", "context"]), None),
        "REPL output:\n\na\n\n\n\nw\n\nZeroDivisionError: division by zero\n\nREPL variables: ['x', 'context']\n"
    );
    assert_eq!(
        feedback(rlm, &ran("y = 2", ""), Some(2), &names(&["y"]), None),
        "REPL output (block 2):\nREPL variables: ['y']\n"
    );
    assert_eq!(
        feedback(rlm, &ran("p", &"0123456789".repeat(3)), None, &names(&["x"]), Some(20)),
        "REPL output:\n\n0123456789012345678... + [35 chars...]"
    );
}

#[test]
fn rlm_s_turn_is_told_as_it_tells_it() {
    assert_eq!(rlm_turn(2, 30), "Turn 2/30:");
}

#[test]
fn rlm_legacy_s_texts_repeat_the_code() {
    let legacy = Profile::RlmLegacy;
    assert_eq!(
        told(legacy, &ran("print(1)", "1\n")),
        "Code executed:\n```python\nprint(1)\n```\n\nREPL output:\n\n1\n"
    );
    assert_eq!(
        told(legacy, &ran("x", "")),
        "Code executed:\n```python\nx\n```\n\nREPL output:\nNo output"
    );
    assert_eq!(
        feedback(
            legacy,
            &failed("1/0", "a\n", "w\n"),
            Some(1),
            &names(&["x", "context"]),
            None
        ),
        "Code executed:\n```python\n1/0\n```\n\nREPL output:\n\na\n\n\n\nw\n\nZeroDivisionError: division by zero\n\n\
         REPL variables: ['x', 'context']\n"
    );
    assert!(told(legacy, &ran("p", &"é".repeat(30_000))).ends_with("é... + [10001 chars...]"));
}

#[test]
fn rlm_minimal_s_texts_have_neither_class_nor_count() {
    let minimal = Format::RlmMinimal;
    assert_eq!(
        feedback(
            minimal,
            &failed("1/0", "a\n", "w\n"),
            None,
            &names(&["x", "context"]),
            None
        ),
        "Code executed:\n```python\n1/0\n```\n\nREPL output:\n\na\n\n\n\nw\ndivision by zero\n\n\
         REPL variables: ['x', 'context']\n"
    );
    assert_eq!(
        feedback(
            minimal,
            &ran("p", &"0123456789".repeat(3)),
            None,
            &names(&["x"]),
            Some(20)
        ),
        "Code executed:\n```python\np\n```\n\nREPL output:\n\n0123456789012345678..."
    );
    let shown = CodeExecution {
        result: Some("'x'".to_owned()),
        ..ran("x", "")
    };
    assert!(told(minimal, &shown).ends_with("REPL output:\n\n'x'\n"));
    assert!(told(minimal, &ran("p", &"x".repeat(100_000))).ends_with("x..."));
    assert!(told(minimal, &ran("p", &"x".repeat(99_999))).ends_with("xx"));
}

#[test]
fn dspy_s_texts() {
    let dspy = Profile::Dspy;
    assert_eq!(told(dspy, &ran("", "hi\n")), "Output (3 chars):\nhi\n");
    assert_eq!(
        told(dspy, &ran("", "")),
        "Output (38 chars):\n(no output - did you forget to print?)"
    );
    assert_eq!(
        told(dspy, &failed("1/0", "", "")),
        "Output (43 chars):\n[Error] ZeroDivisionError: division by zero"
    );
    assert_eq!(
        told(dspy, &ran("", &"x".repeat(1234))),
        format!("Output (1,234 chars):\n{}", "x".repeat(1234))
    );
    let digits = ran("", &"0123456789".repeat(3));
    assert_eq!(
        feedback(dspy, &digits, None, &[], Some(7)),
        "Output (30 chars):\n012\n\n... (23 characters omitted) ...\n\n6789"
    );
    assert_eq!(
        feedback(dspy, &ran("", &"0123456789".repeat(200)), None, &[], Some(4)),
        "Output (2,000 chars):\n01\n\n... (1,996 characters omitted) ...\n\n89"
    );
    assert!(told(dspy, &ran("", &"x".repeat(10_001))).contains("\n\n... (1 characters omitted) ...\n\n"));
    // Unlike dspy, nothing printed is dropped.
    let shown = CodeExecution {
        result: Some("5".to_owned()),
        ..failed("", "printed", "")
    };
    assert_eq!(
        told(dspy, &shown),
        "Output (53 chars):\nprinted\n5\n[Error] ZeroDivisionError: division by zero"
    );
}

#[test]
fn our_own_texts_show_what_there_is() {
    assert_eq!(told(Profile::Default, &ran("x = 1", "")), "Output:\nNo output");
    let shown = CodeExecution {
        result: Some("2".to_owned()),
        ..ran("1 + 1", "printed")
    };
    assert_eq!(
        feedback(Profile::Default, &shown, Some(3), &names(&["a", "b"]), None),
        "Output (block 3):\nprinted\nResult: 2\nVariables: a, b"
    );
    assert_eq!(
        told(Profile::Default, &failed("1/0", "", "w")),
        "Output:\nstderr:\nw\nTraceback (most recent call last):\n  …\nZeroDivisionError: division by zero\n"
    );
    assert_eq!(
        feedback(Profile::Default, &ran("p", "0123456789"), None, &[], Some(4)),
        "Output:\n01\n... [6 characters omitted] ...\n89"
    );
}

#[test]
fn every_format_tells_of_a_lost_state() {
    for format in ["default", "rlm", "rlm-legacy", "rlm-minimal", "dspy"] {
        let format = Format::named(format).unwrap();
        let lost = CodeExecution {
            state: StateReport::lost(names(&["a", "b"]), "the guest crashed"),
            ..ran("x", "")
        };
        assert!(
            told(format, &lost).contains("State lost: the REPL was restarted without its variables: a, b."),
            "{format:?}"
        );
        let restored = CodeExecution {
            state: StateReport::restored(3, names(&["c"]), "the guest crashed"),
            ..ran("x", "")
        };
        assert!(
            told(format, &restored).contains("as an earlier execution left them. Lost: c."),
            "{format:?}"
        );
        let many = (0..1000).map(|number| format!("v{number}"));
        let lost = CodeExecution {
            state: StateReport::lost(many, "the guest crashed"),
            ..ran("x", "")
        };
        let text = told(format, &lost);
        assert!(text.contains("v49, …") && !text.contains("v50"), "{format:?}");
    }
    assert_eq!(Format::named("rlm-maximal"), None);
}

#[test]
fn what_the_session_left_out_is_counted() {
    let mut buffer = OutputBuffer::new(50_000);
    buffer.push(0, &"x".repeat(2_000_000));
    let execution = CodeExecution {
        truncated: Truncated {
            stdout: buffer.omitted(),
            stderr: 0,
            ..Truncated::default()
        },
        ..ran("", &buffer.text())
    };
    assert!(told(Profile::Dspy, &execution).starts_with("Output (2,000,000 chars):\nxxx"));
    assert!(told(Profile::Dspy, &execution).contains("(1,990,000 characters omitted)"));
    // The empty line before the output counts, too.
    assert!(told(Profile::Rlm, &execution).ends_with("x... + [1980001 chars...]"));
    let lies = CodeExecution {
        truncated: Truncated {
            stdout: u64::MAX,
            stderr: 1,
            ..Truncated::default()
        },
        ..execution
    };
    assert!(told(Profile::Dspy, &lies).starts_with("Output (9,223,372,0"));
}

proptest! {
    #[test]
    fn no_format_shows_more_than_it_may(text in "[a-z€😀\n]{0,200}", max in 0_u32..100) {
        for format in [Format::Default, Format::Rlm, Format::RlmLegacy, Format::RlmMinimal, Format::Dspy] {
            let whole = feedback(format, &ran("", &text), None, &[], Some(10_000)).chars().count();
            let short = feedback(format, &ran("", &text), None, &[], Some(max)).chars().count();
            prop_assert!(short <= whole.min(max as usize + 150) + 60);
        }
    }
}
