//! The page for users.

/// The page names every method of the wire.
#[test]
fn the_page_has_all_methods() {
    let page = include_str!("../../../docs/rpc.md");
    let document: serde_json::Value = serde_json::from_str(include_str!("../openrpc.json")).unwrap();
    for group in ["methods", "x-server-methods"] {
        for method in document[group].as_array().unwrap() {
            let name = method["name"].as_str().unwrap();
            assert!(page.contains(&format!("`{name}`")), "docs/rpc.md does not name {name}");
        }
    }
}
