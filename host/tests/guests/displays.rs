//! What stays of a guest's HTML.

use sandglass_host::sanitize_html;

/// Pages sanitize these inputs to the same results: `tests/e2e/displays.mjs`.
#[test]
fn html_becomes_the_same_as_in_pages() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/displays/sanitized.json");
    let cases = std::fs::read_to_string(path).unwrap();
    let cases: Vec<(String, String)> = serde_json::from_str(&cases).unwrap();
    for (html, clean) in cases {
        assert_eq!(sanitize_html(&html), clean, "{html}");
    }
}
