use std::io::Write;
use std::process::{Command, Stdio};

use proptest::prelude::*;
use sandglass_core::guest::FILES;

use super::goes_on;

/// Python that reads the given texts and sources, and sources of its standard library. For the first lines of each statement, with and without an empty
/// line after them, it prints codeop's verdict: true, false, or null for invalid source.
const CODEOP: &str = r#"
import ast, codeop, glob, itertools, json, sys, sysconfig, warnings

warnings.simplefilter("ignore")

def verdict(text):
    try:
        return codeop.compile_command(text) is None
    except (SyntaxError, ValueError, OverflowError):
        return None

def starts(source):
    lines = source.split("\n")
    for node in ast.parse(source).body:
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
        statement = lines[first - 1 : node.end_lineno]
        for count in range(1, len(statement) + 1) if len(statement) < 20 else ():
            text = "\n".join(statement[:count])
            yield from (text, text + "\n")

texts, sources = json.load(sys.stdin)
sources += [open(file, encoding="utf-8").read() for file in sorted(glob.glob(sysconfig.get_path("stdlib") + "/a*.py"))]
texts += itertools.chain.from_iterable(map(starts, sources))
json.dump([[text, verdict(text)] for text in texts], sys.stdout)
"#;

/// Compares with Python's verdicts on these texts, and on sources that every machine has.
fn verdicts(texts: &[String]) -> Vec<(String, Option<bool>)> {
    let ours = FILES.iter().filter(|(name, _)| !name.starts_with("vendored/"));
    let sources: Vec<&str> = ours.map(|(_, source)| *source).collect();
    let mut python = Command::new("python3")
        .args(["-c", CODEOP])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = python.stdin.take().unwrap();
    stdin
        .write_all(&serde_json::to_vec(&(texts, sources)).unwrap())
        .unwrap();
    drop(stdin);
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn pythons_own_rules_hold() {
    let texts = [
        "x = 1",
        "x = (",
        "x = (\n\n",
        "x = {'a': [1,\n",
        "",
        "# a",
        "x; y",
        "lambda: 0",
        "x: int = 3",
        "x[1:",
        "x = \\",
        "x = \\\n1",
        "'''a",
        "'''a\n",
        "'''a\n'''",
        "r'''\\",
        "r'''\\'''",
        "b\"\"\"'''\n",
        "'a\\",
        "'a\\\nb'",
        "'it''s'",
        "'#'",
        "# '''",
        "f''''{x}'''",
        "if x:",
        "if x:\n",
        "if x:\n\n",
        "if x: pass",
        "if x: pass\n",
        "if x:\n    y",
        "if x:\n    y\n",
        "if x:\n  y\n# z",
        "if x:\n  # y\n",
        "if x:\n    y = (\n\n",
        "if x:\n    y\nelse:",
        "if x:\n    y\nelse:\n    z\n",
        "if (x :=\n",
        "if x := 1:\n\ty\n",
        "if x:\n  y\n ",
        "def f():\n    '''a\n\n",
        "def f():\n    '''a\n\n    '''\n",
        "def f(a: int = 1,",
        "async def f(): pass",
        "async with a as b:\n  c\n",
        "class A:\n    x = 1\n\n    def f(self):",
        "@d",
        "@d\n",
        "@d(\n",
        "@d\n\n",
        "@d\ndef f(): pass",
        "@d\ndef f(): pass\n",
        "a @ b",
        "try:\n  x\n",
        "try:\n  x\nexcept E:\n  y\n",
        "try: x\n",
        "try: x\nfinally: y\n",
        "try:\n  try:\n    x\n  except E:\n    y\n",
        "while x:\n  y",
        "for x in y: z\n",
        "match x:",
        "match x:\n  case 1:\n",
        "match x:\n  case 1: y\n",
        "match = 1",
        "match[x]",
        "match: int = 3",
        "f'{x}'",
        "f'{{'",
        "f'{x:{y}}'",
        "f'{x:%H:%M}'",
        "f'{x!r:>{y}}'",
        "f'''{x\n",
        "f'''{x}\n",
        "f'''\n{x}'''",
        "rf'\\{x}'",
        "f'\\N{DIGIT ONE}'",
        "f'{x[1:2]}'",
        "f'{(lambda: 0)()}'",
        "print('ü🦀', \"",
        "print('a'\n",
        "return",
    ];
    let told = verdicts(&texts.map(str::to_owned));
    assert!(told.len() > 2_000, "{}", told.len());
    let wrong: Vec<_> = told
        .iter()
        .filter(|(text, verdict)| verdict.is_some_and(|verdict| verdict != goes_on(text)))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn what_python_refuses_is_for_python_to_say() {
    for text in [
        "x)",
        "(]",
        "f'{x]'",
        "'a",
        "f'a\n",
        "'a\n",
        "f'{x:\n",
        "  x",
        "else:",
        "print(1):",
        "if",
        "if x",
        "don't",
        "what?(",
        "x \\ (",
        "try:\n  x\ny\n",
        "class",
    ] {
        assert!(!goes_on(text), "{text:?}");
    }
}

#[test]
fn several_statements_can_be_pasted() {
    assert!(!goes_on("def f():\n    return 1\n\n\nx = f()"));
    assert!(!goes_on("import os\n\nos.getcwd()\n"));
    assert!(goes_on("x = 1\nfor y in z:\n    w"));
    assert!(goes_on("x = 1\ndef f():\n    return (1,"));
}

type Lines = Vec<String>;

fn lines(text: &[&str]) -> Lines {
    text.iter().map(|line| (*line).to_owned()).collect()
}

/// A simple statement of one line or more.
fn simple() -> impl Strategy<Value = Lines> {
    prop::sample::select(vec![
        &["pass"][..],
        &["x = 'it''s' + \"#\" + rb'\\''"],
        &["x = f'{x[\"a\"]:>{w}}' if y else lambda a: {a: ':'}"],
        &["v: int = 3  # if x:"],
        &["a[1:2] = b; c = d"],
        &["x = (1,", "", "  2) # :"],
        &["s = '''def f():", "else: (", "'''"],
        &["t = f'''{x:", "} {{", "{\"\"\"a\"\"\"!r}'''"],
        &["y = 1 + \\", "  2"],
        &["u = ['\\", "']"],
    ])
    .prop_map(lines)
}

/// A compound statement of such and others.
fn compound(inner: impl Strategy<Value = Lines>) -> impl Strategy<Value = Lines> {
    let heads = prop::sample::select(vec![
        &["if x[1:] == {2: 3}:"][..],
        &["for (x,", "     y) in z:"],
        &["while True:  # not ()"],
        &["with open('''", "''') as f:"],
        &["@d(1,", "   2)", "# more", "@e", "def f(a: int, *, b='):') -> None:"],
        &["async def f[T: int](a):"],
        &["class A(B): # the", "", "    # first"],
        &["try:"],
        &["match x:", "  case {'a': [1, *_]} if y:"],
    ]);
    (heads, prop::collection::vec(inner, 1..3)).prop_map(|(head, body)| {
        let mut all = lines(head);
        all.extend(body.concat().into_iter().map(|line| format!("    {line}")));
        if head == ["try:"] {
            all.extend(lines(&["except* E:", "  pass"]));
        }
        all
    })
}

fn nested() -> impl Strategy<Value = Lines> {
    simple().prop_recursive(4, 24, 3, compound)
}

proptest! {
    #[test]
    fn a_simple_statement_goes_on_to_its_last_line(lines in simple()) {
        for count in 1..lines.len() {
            prop_assert!(goes_on(&lines[..count].join("\n")), "{:#?}", &lines[..count]);
        }
        prop_assert!(!goes_on(&lines.join("\n")));
    }

    #[test]
    fn a_block_goes_on_to_an_empty_line(lines in compound(nested())) {
        for count in 1..=lines.len() {
            prop_assert!(goes_on(&lines[..count].join("\n")), "{:#?}", &lines[..count]);
        }
        prop_assert!(!goes_on(&(lines.join("\n") + "\n")));
        prop_assert!(!goes_on(&(lines.join("\n") + "\nx = 1")));
    }

    #[test]
    fn any_text_can_be_read(text in r#"([a-z:@#\\ ()\[\]{}\n'"]|if |try:|'''|"""|f'|rf"""|\PC){0,40}"#) {
        goes_on(&text);
    }
}
