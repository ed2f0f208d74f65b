//! Finds the modules that code imports, without running it.

/// Modules that read the time zones in the package `tzdata` without importing it by name.
const READ_TIME_ZONES: [&str; 2] = ["zoneinfo", "pandas"];

/// The first parts of the names in `import a.b, c` and `from d import e`, each once, in order. Ignores strings, comments and relative
/// imports. If the code is not Python, the result has everything that looks like an import.
pub fn imported_modules(code: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for statement in statements(code) {
        let mut words = statement.split_whitespace();
        match words.next() {
            Some("import") => {
                let names = statement.trim_start().trim_start_matches("import");
                for name in names.split(',') {
                    add(&mut found, name);
                }
            }
            Some("from") => {
                if let (Some(name), Some("import")) = (words.next(), words.next()) {
                    add(&mut found, name);
                }
            }
            _ => {}
        }
    }
    found
}

fn add(found: &mut Vec<String>, dotted: &str) {
    let name = dotted.split_whitespace().next().unwrap_or_default();
    let top = name.split('.').next().unwrap_or_default();
    let is_identifier = !top.starts_with(|char: char| char.is_ascii_digit())
        && !top.is_empty()
        && top.chars().all(|char| char.is_alphanumeric() || char == '_');
    if !is_identifier {
        return;
    }
    for module in [Some(top), READ_TIME_ZONES.contains(&top).then_some("tzdata")]
        .into_iter()
        .flatten()
    {
        if !found.iter().any(|known| known == module) {
            found.push(module.to_owned());
        }
    }
}

/// The simple statements of the code, without strings and comments. Joins continued lines.
fn statements(code: &str) -> Vec<String> {
    let mut statements = vec![String::new()];
    let mut brackets = 0_u32;
    let mut rest = code;
    while let Some(char) = rest.chars().next() {
        let mut length = char.len_utf8();
        match char {
            '#' => length = rest.find('\n').unwrap_or(rest.len()),
            '"' | '\'' => length = string_length(rest, char),
            '\\' if rest[1..].starts_with('\n') => {
                push(&mut statements, ' ');
                length = 2;
            }
            '\n' if brackets > 0 => push(&mut statements, ' '),
            '\n' | ';' | ':' => statements.push(String::new()),
            '(' | '[' | '{' => {
                brackets += 1;
                push(&mut statements, ' ');
            }
            ')' | ']' | '}' => brackets = brackets.saturating_sub(1),
            char => push(&mut statements, char),
        }
        rest = &rest[length..];
    }
    statements
}

fn push(statements: &mut [String], char: char) {
    if let Some(last) = statements.last_mut() {
        last.push(char);
    }
}

/// The length of the string literal that `text` begins with, in bytes. An unclosed literal ends with its line; with triple quotes, at the
/// end of `text`.
fn string_length(text: &str, quote: char) -> usize {
    let triple = [quote; 3].iter().collect::<String>();
    let is_long = text.starts_with(&triple);
    let opening = if is_long { 3 } else { 1 };
    let mut chars = text[opening..].char_indices();
    while let Some((at, char)) = chars.next() {
        let at = opening + at;
        match char {
            '\\' => drop(chars.next()),
            '\n' if !is_long => return at,
            _ if is_long && text[at..].starts_with(&triple) => return at + 3,
            _ if !is_long && char == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}
