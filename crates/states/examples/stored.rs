//! Stores the states that come on the standard input, one after another in place of each other. After each it prints the bytes that were
//! written so far.
//!
//! Each state has its length before it: eight bytes, the lowest first. `npm run bench:states` uses this.

use std::error::Error;
use std::io::{Read, stdin};
use std::sync::Arc;

use sandglass_states::{MasterKey, MemoryStore, Saved, States};

fn main() -> Result<(), Box<dyn Error>> {
    let key = MasterKey::parse(&"0f".repeat(32))?;
    let tenant = States::new(Arc::new(MemoryStore::default()), key)?.tenant("bench")?;
    let session = "00112233445566778899aabbccddeeff".parse()?;
    let mut input = stdin().lock();
    let (mut length, mut written) = ([0; 8], 0);
    while input.read_exact(&mut length).is_ok() {
        let mut state = vec![0; usize::try_from(u64::from_le_bytes(length))?];
        input.read_exact(&mut state)?;
        let saved = Saved {
            state: state.into(),
            ..Saved::default()
        };
        written += tenant.write(session, &saved)?.new_bytes;
        println!("{written}");
    }
    Ok(())
}
