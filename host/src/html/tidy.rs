//! Reduces HTML to known tags, each of them closed, and not too deep.
//!
//! An HTML parser can make far more elements than there are tags, because it opens an unclosed tag again in each following
//! paragraph. For closed tags of bounded depth, it makes as many elements as there are tags. Pages do the same
//! (`pyodide-glue/tidy-html.js`), with the same lists (`display/html.json` of the core).

use html5gum::{DefaultEmitter, HtmlString, StartTag, Token, Tokenizer};

use super::ALLOWED;

/// HTML that is cheap to parse, and its style sheets.
pub(super) struct Tidied {
    pub html: String,
    pub styles: Vec<String>,
}

/// Reads HTML tag by tag.
pub(super) fn tidy(html: &str) -> Tidied {
    let mut emitter = DefaultEmitter::default();
    emitter.naively_switch_states(true);
    let mut tidier = Tidier::default();
    for token in Tokenizer::new_with_emitter(html, emitter) {
        let Ok(token) = token;
        tidier.take(token);
    }
    while let Some(name) = tidier.open.pop() {
        tidier.close(&name);
    }
    Tidied {
        html: tidier.html,
        styles: tidier.styles,
    }
}

#[derive(Default)]
struct Tidier {
    html: String,
    styles: Vec<String>,
    elements: usize,
    /// The open elements.
    open: Vec<String>,
    /// The open element whose content is not HTML, with the content if it is a style sheet.
    hidden: Option<(String, Option<String>)>,
}

impl Tidier {
    fn take(&mut self, token: Token) {
        match token {
            Token::String(text) => match &mut self.hidden {
                Some((_, Some(style))) => style.push_str(&String::from_utf8_lossy(&text)),
                Some((_, None)) => {}
                None => escape(&String::from_utf8_lossy(&text), &mut self.html),
            },
            Token::StartTag(tag) => {
                let name = lower(&tag.name);
                if self.hidden.is_none() {
                    self.start(name, &tag);
                }
            }
            Token::EndTag(tag) => {
                let name = lower(&tag.name);
                match self.hidden.take_if(|(hidden, _)| *hidden == name) {
                    Some((_, Some(style))) if self.styles.len() < ALLOWED.source.max_styles => self.styles.push(style),
                    Some(_) => {}
                    None if self.hidden.is_none() => self.end(&name),
                    None => {}
                }
            }
            Token::Comment(_) | Token::Doctype(_) | Token::Error(_) => {}
        }
    }

    fn start(&mut self, name: String, tag: &StartTag<()>) {
        if ALLOWED.hidden.contains(&name) {
            let style = (name == "style" && applies(tag)).then(String::new);
            self.hidden = Some((name, style));
            return;
        }
        if !ALLOWED.tags.contains(&name) {
            return;
        }
        self.end_implied(&name);
        let formatting = |name: &String| ALLOWED.formatting.contains(name);
        let limits = &ALLOWED.source;
        let is_nested =
            formatting(&name) && self.open.iter().filter(|name| formatting(name)).count() >= limits.max_formatting;
        if self.elements >= limits.max_elements || self.open.len() >= limits.max_depth || is_nested {
            return;
        }
        self.elements += 1;
        self.html.push('<');
        self.html.push_str(&name);
        for (key, value) in &tag.attributes {
            let key = lower(key);
            if ALLOWED.attributes.contains(&key) {
                self.html.push(' ');
                self.html.push_str(&key);
                self.html.push_str("=\"");
                escape(&String::from_utf8_lossy(value), &mut self.html);
                self.html.push('"');
            }
        }
        self.html.push('>');
        if tag.self_closing && ALLOWED.svg_tags.contains(&name) {
            self.close(&name);
        } else if !ALLOWED.void.contains(&name) {
            self.open.push(name);
        }
    }

    fn end(&mut self, name: &str) {
        // The cell of a table keeps outer elements from being closed.
        let walls = if ALLOWED.table.contains(name) {
            "table"
        } else {
            "table td th caption"
        };
        self.end_within(|open| open == name, |open| has(walls, open));
    }

    /// Ends the elements that a tag ends implicitly.
    fn end_implied(&mut self, name: &str) {
        if let Some(ends) = ALLOWED.source.ends.iter().find(|ends| has(&ends.tags, name)) {
            self.end_within(|open| has(&ends.end, open), |open| has(&ends.within, open));
        } else if name == "p" && self.open.last().is_some_and(|last| last == "p") {
            self.end_within(|open| open == "p", |_| false);
        }
    }

    /// Ends the innermost element for which `is_ended` holds, with all elements inside, unless a wall lies between.
    fn end_within(&mut self, is_ended: impl Fn(&str) -> bool, is_wall: impl Fn(&str) -> bool) {
        for at in (0..self.open.len()).rev() {
            let name = self.open[at].as_str();
            if is_ended(name) {
                for name in self.open.split_off(at).iter().rev() {
                    self.close(name);
                }
                return;
            }
            if is_wall(name) {
                return;
            }
        }
    }

    fn close(&mut self, name: &str) {
        self.html.push_str("</");
        self.html.push_str(name);
        self.html.push('>');
    }
}

/// True for a name among words.
fn has(words: &str, name: &str) -> bool {
    words.split(' ').any(|word| word == name)
}

/// Returns true for a style sheet that browsers apply on screens.
fn applies(style: &StartTag<()>) -> bool {
    let is = |name: &str, values: &[&str]| {
        let value = style.attributes.get(name.as_bytes()).map(|value| lower(value));
        value.is_none_or(|value| values.contains(&value.trim()))
    };
    is("media", &["", "all", "screen"]) && is("type", &["", "text/css"])
}

fn lower(name: &HtmlString) -> String {
    String::from_utf8_lossy(name).to_ascii_lowercase()
}

fn escape(text: &str, out: &mut String) {
    for char in text.chars() {
        match char {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            _ => out.push(char),
        }
    }
}
