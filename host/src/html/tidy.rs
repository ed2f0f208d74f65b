//! HTML as tags that are known, each of them closed, and not too deep.
//!
//! A parser of HTML can make far more elements than there are tags. A tag that was not closed is opened again in each paragraph
//! that follows. Of tags that are closed, in bounded depth, it makes as many elements as there are tags.

use html5gum::{DefaultEmitter, HtmlString, StartTag, Token, Tokenizer};

use super::ALLOWED;

/// Elements within elements. Tags that would lie deeper are left out; their text stays.
const MAX_DEPTH: usize = 200;
/// The same for those that a parser opens again.
const MAX_FORMATTING: usize = 8;
/// Style sheets. Further ones are left out.
const MAX_STYLES: usize = 100;

const FORMATTING: [&str; 13] = [
    "a", "b", "big", "code", "em", "font", "i", "nobr", "s", "small", "strike", "strong", "u",
];
const VOID: [&str; 6] = ["br", "col", "hr", "img", "input", "wbr"];
/// Elements whose content is no HTML, and is not shown.
const HIDDEN: [&str; 9] = [
    "script",
    "style",
    "title",
    "textarea",
    "iframe",
    "xmp",
    "noembed",
    "noscript",
    "plaintext",
];
const TABLE: [&str; 9] = [
    "caption", "col", "colgroup", "table", "tbody", "td", "tfoot", "th", "thead",
];

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
    /// The elements that are open.
    open: Vec<String>,
    /// The element whose content is not HTML, and that content where it is a style sheet.
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
                    Some((_, Some(style))) if self.styles.len() < MAX_STYLES => self.styles.push(style),
                    Some(_) => {}
                    None if self.hidden.is_none() => self.end(&name),
                    None => {}
                }
            }
            Token::Comment(_) | Token::Doctype(_) | Token::Error(_) => {}
        }
    }

    fn start(&mut self, name: String, tag: &StartTag<()>) {
        if HIDDEN.contains(&name.as_str()) {
            let style = (name == "style" && applies(tag)).then(String::new);
            self.hidden = Some((name, style));
            return;
        }
        if !ALLOWED.tags.contains(&name) {
            return;
        }
        self.end_implied(&name);
        let formatting = |name: &String| FORMATTING.contains(&name.as_str());
        let is_nested = formatting(&name) && self.open.iter().filter(|name| formatting(name)).count() >= MAX_FORMATTING;
        if self.open.len() >= MAX_DEPTH || is_nested {
            return;
        }
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
        } else if !VOID.contains(&name.as_str()) {
            self.open.push(name);
        }
    }

    fn end(&mut self, name: &str) {
        // A table's cell keeps what belongs to others from being closed.
        let walls: &[&str] = if TABLE.contains(&name) || name == "tr" {
            &["table"]
        } else {
            &["table", "td", "th", "caption"]
        };
        self.end_within(&[name], walls);
    }

    /// Ends the elements that a tag ends without saying so.
    fn end_implied(&mut self, name: &str) {
        match name {
            "li" => self.end_within(&["li"], &["ul", "ol", "menu", "table", "td", "th"]),
            "dt" | "dd" => self.end_within(&["dt", "dd"], &["dl", "table", "td", "th"]),
            "td" | "th" => self.end_within(&["td", "th"], &["tr", "table"]),
            "tr" => self.end_within(&["tr"], &["table"]),
            "thead" | "tbody" | "tfoot" => self.end_within(&["thead", "tbody", "tfoot"], &["table"]),
            "rt" | "rp" => self.end_within(&["rt", "rp"], &["ruby"]),
            "p" if self.open.last().is_some_and(|last| last == "p") => self.end_within(&["p"], &[]),
            _ => {}
        }
    }

    /// Ends the innermost element of one of these names, and what is in it, unless one of `walls` lies between.
    fn end_within(&mut self, names: &[&str], walls: &[&str]) {
        for at in (0..self.open.len()).rev() {
            let name = self.open[at].as_str();
            if names.contains(&name) {
                for name in self.open.split_off(at).iter().rev() {
                    self.close(name);
                }
                return;
            }
            if walls.contains(&name) {
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

/// True for a style sheet that browsers apply to what is on a screen.
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
