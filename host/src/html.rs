//! Sanitizes a guest's HTML, so that it can reach nobody.
//!
//! A content policy and `<iframe sandbox>` keep HTML from running scripts and from loading data. They do not stop name lookups
//! and connections (`<link rel=preconnect>`). So the HTML is parsed and written again from an allowlist ([`HTML_ALLOWED`]), in
//! two passes: `tidy` bounds the cost of parsing, and [`ammonia`] handles the result as a browser would.
//!
//! Decisions: `docs/internals/jupyter.md`.

mod css;
mod tidy;

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::LazyLock;

use ammonia::{Builder, UrlRelative};
use sandglass_core::display::HTML_ALLOWED;
use serde::Deserialize;

/// The allowlist.
static ALLOWED: LazyLock<Allowed> = LazyLock::new(Allowed::read);
static CLEANER: LazyLock<Builder<'static>> = LazyLock::new(cleaner);

/// Rebuilds a guest's HTML from an allowlist of elements, attributes and styles. The result has no scripts, no external links,
/// and nothing that makes a browser look up a name, connect or load. Pictures, sound and fonts stay if they are `data:` URLs.
///
/// Show the result in a frame all the same (`<iframe sandbox srcdoc>`), because it can imitate any page.
///
/// ```
/// let html = "<b>7</b><link rel=preconnect href=//example.com><img src=//example.com/a.png>";
/// assert_eq!(sandglass_host::sanitize_html(html), "<b>7</b><img>");
/// ```
#[must_use]
pub fn sanitize_html(html: &str) -> String {
    let tidied = tidy::tidy(html);
    let mut clean: String = tidied
        .styles
        .iter()
        .map(|style| format!("<style>{}</style>", css::filter(style)))
        .collect();
    clean.push_str(&CLEANER.clean(&tidied.html).to_string());
    clean
}

/// The content policy of a document that shows a guest's HTML.
pub fn policy() -> &'static str {
    &ALLOWED.policy
}

struct Allowed {
    policy: String,
    /// Allowed tags in lower case, as a tokenizer gives them.
    tags: HashSet<String>,
    attributes: HashSet<String>,
    svg_tags: HashSet<String>,
    /// Attributes whose values are CSS.
    css_attributes: HashSet<String>,
    at_rules: HashSet<String>,
    functions: HashSet<String>,
    /// Elements whose content is no HTML, or is not shown.
    hidden: HashSet<String>,
    void: HashSet<String>,
    /// Elements that a parser opens again by itself.
    formatting: HashSet<String>,
    table: HashSet<String>,
    source: Source,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Source {
    policy: String,
    tags: Vec<String>,
    svg_tags: Vec<String>,
    attributes: Vec<String>,
    svg_attributes: Vec<String>,
    css_attributes: Vec<String>,
    at_rules: Vec<String>,
    functions: Vec<String>,
    hidden: Vec<String>,
    void: Vec<String>,
    formatting: Vec<String>,
    table: Vec<String>,
    ends: Vec<Ends>,
    /// Elements. Further tags are left out; their text stays.
    max_elements: usize,
    /// Most levels of elements. Deeper tags are left out.
    max_depth: usize,
    /// Most levels of elements that a parser opens again.
    max_formatting: usize,
    /// Most style sheets. Further ones are left out.
    max_styles: usize,
    /// Most levels of brackets in a style sheet. Deeper CSS is left out.
    max_css_depth: usize,
}

/// Tags that implicitly end other elements. Each field holds words.
#[derive(Deserialize)]
struct Ends {
    tags: String,
    /// The elements that end.
    end: String,
    /// The elements that stop the search for such elements.
    within: String,
}

impl Allowed {
    #[expect(clippy::expect_used, reason = "the list is ours, and a test reads it")]
    fn read() -> Self {
        let source: Source = serde_json::from_str(HTML_ALLOWED).expect("the allowlist is JSON");
        let lower = |lists: &[&[String]]| {
            let words = lists.iter().flat_map(|lines| words(lines));
            words.map(str::to_ascii_lowercase).collect::<HashSet<_>>()
        };
        Self {
            policy: source.policy.clone(),
            tags: lower(&[&source.tags, &source.svg_tags]),
            attributes: lower(&[&source.attributes, &source.svg_attributes]),
            svg_tags: lower(&[&source.svg_tags]),
            css_attributes: lower(&[&source.css_attributes]),
            at_rules: lower(&[&source.at_rules]),
            functions: lower(&[&source.functions]),
            hidden: lower(&[&source.hidden]),
            void: lower(&[&source.void]),
            formatting: lower(&[&source.formatting]),
            table: lower(&[&source.table]),
            source,
        }
    }
}

fn words(lines: &[String]) -> impl Iterator<Item = &str> {
    lines.iter().flat_map(|line| line.split_whitespace())
}

fn cleaner() -> Builder<'static> {
    let source = &ALLOWED.source;
    let tags = words(&source.tags).chain(words(&source.svg_tags));
    // Style sheets are filtered apart. Here there is none any more.
    let tags = tags.filter(|tag| *tag != "style").collect();
    let attributes = words(&source.attributes).chain(words(&source.svg_attributes));
    // For an attribute with a prefix, such as `xlink:href`, ammonia asks for the part after the prefix.
    let attributes = attributes.map(|name| name.rsplit(':').next().unwrap_or(name));
    let mut cleaner = Builder::empty();
    cleaner
        .tags(tags)
        .generic_attributes(attributes.collect())
        .clean_content_tags(HashSet::from(["script", "style"]))
        .url_schemes(HashSet::from(["data"]))
        .url_relative(UrlRelative::PassThrough)
        .link_rel(None)
        .attribute_filter(value_of);
    cleaner
}

/// The new value of an attribute; `None` removes the attribute.
fn value_of<'value>(tag: &str, attribute: &str, value: &'value str) -> Option<Cow<'value, str>> {
    match attribute {
        // A drawing may link to its own parts, and an image to its own data.
        "href" if tag != "image" => value.starts_with('#').then_some(Cow::Borrowed(value)),
        "href" | "src" => is_data(value).then_some(Cow::Borrowed(value)),
        _ if ALLOWED.css_attributes.contains(attribute) => Some(Cow::Owned(css::filter(value))),
        _ => Some(Cow::Borrowed(value)),
    }
}

/// Returns true for a URL that contains its picture, sound or font.
fn is_data(url: &str) -> bool {
    let kinds = ["data:image/", "data:audio/", "data:video/", "data:font/"];
    kinds.iter().any(|kind| {
        url.get(..kind.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(kind))
    })
}

#[cfg(test)]
mod tests {
    use super::sanitize_html;

    #[test]
    fn what_it_is_made_of_stays() {
        for html in [
            "<p>1 &lt; 2 &amp; 3</p>",
            "<style>#T_a td{color:#fde725;width:calc(1px + 2em)}</style><table id=\"T_a\"><tbody><tr><td class=\"x\">1</td></tr></tbody></table>",
            "<svg viewBox=\"0 0 1 1\"><defs><clipPath id=\"p\"></clipPath></defs><use xlink:href=\"#p\"></use><path clip-path=\"url(&quot;#p&quot;)\" d=\"M0 0\"></path></svg>",
            "<img src=\"data:image/png;base64,AAAA\">",
            "<a href=\"#here\">x</a><details open=\"\"><summary>y</summary></details>",
        ] {
            let mut parts: Vec<_> = html.split([' ', '<', '>']).collect();
            let clean = sanitize_html(html);
            let mut left: Vec<_> = clean.split([' ', '<', '>']).collect();
            // Attributes come in another order.
            parts.sort_unstable();
            left.sort_unstable();
            assert_eq!(left, parts, "{html} became {clean}");
        }
    }

    #[test]
    fn it_takes_no_more_than_it_is_given() {
        let tags = |count: usize, tag: &str| tag.repeat(count);
        for html in [
            (0..2_000)
                .map(|at| format!("<div><b id={at}></div><p>x"))
                .collect::<String>(),
            tags(2_000, "<div>") + &tags(2_000, "<p>x"),
            tags(2_000, "<svg><a>"),
            format!(
                "<style>{}</style><p style='{}'>",
                tags(20_000, "("),
                tags(5_000, "var(")
            ),
        ] {
            let clean = sanitize_html(&html);
            assert!(clean.len() <= 4 * html.len(), "{} of {}", clean.len(), html.len());
        }
    }
}
