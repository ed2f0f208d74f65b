//! Sanitizes HTML as a host does before it shows any. Reads lines of JSON strings, and writes lines of JSON strings.
//!
//!     echo '"<b onclick=1>7</b>"' | cargo run --package sandglass-host --example sanitize

use std::io::{self, BufRead, Write};

fn main() -> io::Result<()> {
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let html: String = serde_json::from_str(&line?)?;
        writeln!(out, "{}", serde_json::to_string(&sandglass_host::sanitize_html(&html))?)?;
    }
    Ok(())
}
