//! Removes addresses from CSS, token by token, so that no unusual spelling gets through.

use std::fmt::Write;

use cssparser::{ParseError, Parser, ToCss, Token, serialize_string};

use super::{ALLOWED, is_data};

/// The same CSS with addresses, unknown functions and unknown at-rules replaced by meaningless words. A browser drops the
/// declarations and rules around these words.
pub(super) fn filter(css: &str) -> String {
    let mut filtered = String::with_capacity(css.len());
    block(&mut Parser::new(css), &mut filtered, 0);
    // A `<` could end the element around the text.
    filtered.replace('<', "\\3c ")
}

fn block(parser: &mut Parser<'_>, out: &mut String, depth: usize) {
    loop {
        let start = parser.position();
        let Ok(token) = parser.next_including_whitespace_and_comments().cloned() else {
            return;
        };
        let close = match &token {
            Token::ParenthesisBlock => ")",
            Token::SquareBracketBlock => "]",
            Token::CurlyBracketBlock => "}",
            Token::Function(name) if name.eq_ignore_ascii_case("url") => {
                url(parser, out);
                continue;
            }
            Token::Function(name) => {
                if ALLOWED.functions.contains(&name.to_ascii_lowercase()) {
                    // The name without escapes.
                    out.push_str(name);
                    out.push('(');
                } else {
                    out.push_str("blocked(");
                }
                inside(parser, out, depth);
                out.push(')');
                continue;
            }
            other => {
                let text = parser.slice_from(start);
                single(other, text, out);
                continue;
            }
        };
        out.push_str(parser.slice_from(start));
        inside(parser, out, depth);
        out.push_str(close);
    }
}

/// Filters the text between brackets.
fn inside(parser: &mut Parser<'_>, out: &mut String, depth: usize) {
    // Without this call, the parser goes on behind the brackets.
    if depth < ALLOWED.source.max_css_depth {
        let _ = parser.parse_nested_block(|inner| -> Result<(), ParseError<()>> {
            block(inner, out, depth + 1);
            Ok(())
        });
    }
}

/// `url("…")`.
fn url(parser: &mut Parser<'_>, out: &mut String) {
    let address = parser.parse_nested_block(|inner| -> Result<String, ParseError<()>> {
        Ok(inner.expect_string()?.as_ref().to_owned())
    });
    address_of(address.as_deref().unwrap_or_default(), out);
}

fn address_of(address: &str, out: &mut String) {
    if address.starts_with('#') || is_data(address) {
        out.push_str("url(");
        // Writing to a String does not fail.
        let _ = serialize_string(address, out);
        out.push(')');
    } else {
        out.push_str(" blocked ");
    }
}

fn single(token: &Token<'_>, text: &str, out: &mut String) {
    match token {
        Token::UnquotedUrl(address) => address_of(address, out),
        Token::AtKeyword(name) if ALLOWED.at_rules.contains(&name.to_ascii_lowercase()) => {
            let _ = write!(out, "@{}", name.to_ascii_lowercase());
        }
        Token::AtKeyword(_) => out.push_str("@blocked"),
        Token::BadUrl(_) | Token::BadString(_) => out.push_str(" blocked "),
        Token::QuotedString(_) => {
            let _ = token.to_css(out);
        }
        // The comment keeps its neighbours apart.
        Token::Comment(_) => out.push_str("/**/"),
        Token::CDO | Token::CDC => out.push(' '),
        _ => out.push_str(text),
    }
}
