//! Cutting bodies into pieces. The cuts follow the content, so a change in the middle leaves the other pieces as they were.

use fastcdc::v2020::FastCDC;

use crate::seal::MOST_CONTENT;

const LEAST: usize = 256 << 10;
const AVERAGE: usize = 1 << 20;

/// The pieces of a body, in order. An empty body has none.
pub(crate) fn pieces(body: &[u8]) -> Vec<&[u8]> {
    if body.len() <= LEAST {
        return if body.is_empty() { Vec::new() } else { vec![body] };
    }
    let cuts = FastCDC::new(body, LEAST, AVERAGE, MOST_CONTENT);
    cuts.filter_map(|chunk| body.get(chunk.offset..chunk.offset + chunk.length))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that look random, the same for each seed.
    fn noise(seed: u64, bytes: usize) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        (0..bytes).map(|_| next()).collect()
    }

    #[test]
    fn pieces_are_the_body() {
        for bytes in [0, 1, LEAST, LEAST + 1, 3 << 20, 9 << 20] {
            let body = noise(7, bytes);
            let pieces = pieces(&body);
            assert_eq!(pieces.concat(), body, "{bytes}");
            assert!(
                pieces
                    .iter()
                    .all(|piece| !piece.is_empty() && piece.len() <= MOST_CONTENT)
            );
        }
        assert_eq!(pieces(&vec![0; 20 << 20]).concat().len(), 20 << 20);
    }

    #[test]
    fn a_change_in_the_middle_changes_few_pieces() {
        let before = noise(11, 24 << 20);
        let mut after = before.clone();
        after.splice(10 << 20..10 << 20, *b"more");
        let (before, after) = (pieces(&before), pieces(&after));
        let same = after.iter().filter(|piece| before.contains(piece)).count();
        assert!(after.len() >= 8 && same + 3 >= after.len(), "{same} of {}", after.len());
    }
}
